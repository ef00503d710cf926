package node

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
)

func TestStreamsAreLimited(t *testing.T) {
	var l streamLimit
	var leaves []func()
	enter := func(kind, pod string, limit int) error {
		leave, err := l.enter(kind, pod, limit)
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err
	}
	for range 4 {
		require.NoError(t, enter("logs", "acme/one-vm", 4))
	}
	require.EqualError(t, enter("logs", "acme/one-vm", 4), "pod acme/one-vm has 4 logs, and the limit is 4; close one first")
	require.NoError(t, enter("commands", "acme/one-vm", 4), "each kind has a limit of its own")
	require.NoError(t, enter("logs", "globex/one-vm", 4), "each pod has a limit of its own")
	for i := range maxStreams - 6 {
		require.NoError(t, enter("logs", fmt.Sprintf("acme/%d", i), 4))
	}
	require.ErrorContains(t, enter("logs", "acme/last", 4), fmt.Sprintf("this Mac has %d open commands", maxStreams))
	for _, leave := range leaves {
		leave()
	}
	assert.Empty(t, l.open)
	assert.Zero(t, l.total)
	require.NoError(t, enter("logs", "acme/one-vm", 4))
}

// A refused request opens no stream, and a closed stream makes room.
func TestConsoleReadersAreLimited(t *testing.T) {
	ca := newAuthority(t)
	client := ca.sign(kubeAPIServer)
	end := make(chan struct{})
	var opened, closed sync.WaitGroup
	opened.Add(MaxLogs)
	address := serve(t, ServerConfig{ClientCAFile: ca.file(), CertDir: t.TempDir(), Logs: func(ctx context.Context, _, pod, _ string, _ api.ContainerLogOpts) (io.ReadCloser, error) {
		opened.Done() // panics if one too many is opened
		reader, writer := io.Pipe()
		go func() {
			<-end
			_ = writer.Close()
		}()
		return reader, nil
	}})
	for range MaxLogs {
		closed.Go(func() {
			code, _, _, err := get(address+"/containerLogs/acme/vm/macos-vm?follow=true", client)
			assert.NoError(t, err)
			assert.Equal(t, http.StatusOK, code)
		})
	}
	opened.Wait()
	code, text, _, err := get(address+"/containerLogs/acme/vm/macos-vm", client)
	require.NoError(t, err)
	assert.Equal(t, http.StatusTooManyRequests, code)
	assert.Equal(t, "pod acme/vm has 16 readers of the console, and the limit is 16; close one first\n", text)
	close(end)
	closed.Wait()
	opened.Add(1)
	code, _, _, err = get(address+"/containerLogs/acme/vm/macos-vm", client)
	require.NoError(t, err)
	assert.Equal(t, http.StatusOK, code)
}
