package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

const (
	acceptJSON     = "application/json"
	acceptProtobuf = "application/vnd.kubernetes.protobuf"
	acceptTable    = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
)

// read gets a URL and returns its body as transferred.
func (s *side) read(ctx context.Context, address, accept string, compressed bool) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", accept)
	if compressed {
		req.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1000))
		return nil, fmt.Errorf("%s: GET %s: %s: %s", s.name, address, resp.Status, body)
	}
	if served := resp.Header.Get("Content-Type"); !strings.HasPrefix(served, strings.Split(accept, ";")[0]) {
		resp.Body.Close()
		return nil, fmt.Errorf("%s: requested %s, got %s", s.name, accept, served)
	}
	return resp, nil
}

// list reads all instances at once, as informers do, and returns the time and the number of bytes.
func (s *side) list(ctx context.Context, accept string, compressed bool) (time.Duration, int64, error) {
	start := time.Now()
	resp, err := s.read(ctx, s.instances(listedIn)+"?resourceVersion=0", accept, compressed)
	if err != nil {
		return 0, 0, err
	}
	defer resp.Body.Close()
	size, err := io.Copy(io.Discard, resp.Body)
	return time.Since(start), size, err
}

// table reads all instances as rows, in pages of 500, as kubectl does. It returns the time without
// the client's own work, and the number of bytes.
func (s *side) table(ctx context.Context, want int) (took time.Duration, size int64, err error) {
	rows, next := 0, ""
	for {
		start := time.Now()
		resp, err := s.read(ctx, s.instances(listedIn)+"?limit=500&continue="+url.QueryEscape(next), acceptTable, false)
		if err != nil {
			return 0, 0, err
		}
		body, err := io.ReadAll(resp.Body)
		took += time.Since(start)
		resp.Body.Close()
		if err != nil {
			return 0, 0, err
		}
		size += int64(len(body))
		var page struct {
			Kind     string
			Metadata struct{ Continue string }
			Rows     []struct{}
		}
		if err := json.Unmarshal(body, &page); err != nil {
			return 0, 0, err
		}
		rows, next = rows+len(page.Rows), page.Metadata.Continue
		if next == "" {
			if page.Kind != "Table" || rows != want {
				return 0, 0, fmt.Errorf("%s: %d rows of %s were listed, not %d", s.name, rows, page.Kind, want)
			}
			return took, size, nil
		}
	}
}

// settle waits until a server's cache is complete. Keys written at once have one revision, and a
// server takes its cache for current with the first of them.
func (s *side) settle(ctx context.Context, want int) error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		_, _, err := s.table(ctx, want)
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}

// both alternates between the two sides and adds the times and bytes.
func (b *bench) both(name string, f func(i int, s *side) (time.Duration, int64, error)) error {
	var took [2][]time.Duration
	var size [2][]float64
	sides := [2]*side{b.ours, b.twin}
	for round := -1; round < b.rounds; round++ {
		for i := range sides {
			i = (i + round + 1) % 2
			elapsed, n, err := f(i, sides[i])
			if err != nil {
				return err
			}
			if round >= 0 { // the first warms up
				took[i], size[i] = append(took[i], elapsed), append(size[i], float64(n)/1e6)
			}
		}
	}
	b.less(name+", time", "ms", allMS(took[0]), allMS(took[1]), 0.4)
	b.less(name+", bytes", "MB", size[0], size[1], 0.4)
	return nil
}

// measureReads compares lists of many instances, and watches by many clients.
func (b *bench) measureReads(ctx context.Context) error {
	var ours, twins []pair
	for n := range b.listed {
		i := newInstance(listedIn, n, n/2)
		a, c, err := b.bothStored(i)
		if err != nil {
			return err
		}
		ours, twins = append(ours, a), append(twins, c)
	}
	if err := put(ctx, b.ours.etcd, ours...); err != nil {
		return err
	}
	if err := put(ctx, b.twin.etcd, twins...); err != nil {
		return err
	}
	for _, s := range []*side{b.ours, b.twin} {
		if err := s.settle(ctx, b.listed); err != nil {
			return err
		}
	}
	asked := [2]string{acceptProtobuf, acceptJSON}
	for _, compressed := range []bool{false, true} {
		name := fmt.Sprintf("list of %d instances by an informer", b.listed)
		if compressed {
			name += ", compressed"
		}
		if err := b.both(name, func(i int, s *side) (time.Duration, int64, error) { return s.list(ctx, asked[i], compressed) }); err != nil {
			return err
		}
	}
	if err := b.both(fmt.Sprintf("list of %d instances by kubectl", b.listed), func(_ int, s *side) (time.Duration, int64, error) { return s.table(ctx, b.listed) }); err != nil {
		return err
	}
	number := 0
	return b.both(fmt.Sprintf("%d events to %d watchers", b.events, b.watchers), func(i int, s *side) (time.Duration, int64, error) {
		number++
		return b.fanOut(ctx, i, s, asked[i], number)
	})
}

func (b *bench) bothStored(i *instancev1alpha1.MacOSInstance) (ours, twin pair, err error) {
	value, err := stored(instancev1alpha1.SchemeGroupVersion, i)
	if err != nil {
		return ours, twin, err
	}
	ours = pair{key("instance.macrack.io", "macosinstances", i.Namespace, i.Name), value}
	if value, err = storedTwin("MacOSInstance", i); err != nil {
		return ours, twin, err
	}
	return ours, pair{key(twinGroup, "macosinstances", i.Namespace, i.Name), value}, nil
}

// watchersOnConnection is the number of watches that share a connection.
const watchersOnConnection = 20

// fanOut opens watches, changes instances, and returns the time until all watchers have received
// all changes, and the number of bytes.
func (b *bench) fanOut(ctx context.Context, which int, s *side, accept string, number int) (time.Duration, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	answer, err := s.do(ctx, http.MethodGet, s.instances(listedIn)+"?limit=1", "", nil)
	if err != nil {
		return 0, 0, err
	}
	var list struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(answer, &list); err != nil {
		return 0, 0, err
	}
	var size atomic.Int64
	failed := make(chan error, b.watchers)
	var wg sync.WaitGroup
	var connection *side
	for n := range b.watchers {
		if n%watchersOnConnection == 0 {
			connection = &side{}
			*connection = *s
			connection.http = s.newClient()
			defer connection.http.CloseIdleConnections()
		}
		resp, err := connection.read(ctx, s.instances(listedIn)+"?watch=1&resourceVersion="+list.Metadata.ResourceVersion, accept, false)
		if err != nil {
			return 0, 0, err
		}
		wg.Go(func() {
			defer resp.Body.Close()
			got, err := events(resp.Body, accept, b.events)
			size.Add(got)
			if err != nil {
				failed <- fmt.Errorf("%s: watching: %w", s.name, err)
				cancel()
			}
		})
	}
	start := time.Now()
	for n := range b.events {
		i := newInstance(listedIn, n, n/2)
		i.Annotations = map[string]string{"bench": fmt.Sprint(number)}
		ours, twin, err := b.bothStored(i)
		if err != nil {
			return 0, 0, err
		}
		p := [2]pair{ours, twin}[which]
		if _, err := s.etcd.Put(ctx, p.key, string(p.value)); err != nil {
			return 0, 0, err
		}
	}
	wg.Wait()
	took := time.Since(start)
	select {
	case err := <-failed:
		return 0, 0, err
	default:
		return took, size.Load(), nil
	}
}

// events reads a number of events of a watch, and returns their size.
func events(body io.Reader, accept string, count int) (size int64, err error) {
	reader := bufio.NewReader(body)
	for range count {
		if accept == acceptProtobuf {
			var length [4]byte
			if _, err := io.ReadFull(reader, length[:]); err != nil {
				return size, err
			}
			n, err := reader.Discard(int(binary.BigEndian.Uint32(length[:])))
			size += int64(n) + 4
			if err != nil {
				return size, err
			}
			continue
		}
		for ended := false; !ended; {
			part, err := reader.ReadSlice('\n')
			size += int64(len(part))
			if err != nil && err != bufio.ErrBufferFull {
				return size, err
			}
			ended = bytes.HasSuffix(part, []byte("\n"))
		}
	}
	return size, nil
}
