package guest

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"macrack.io/macrack/pkg/vm/contract"
)

func serve(t *testing.T, mux *http.ServeMux) *Client {
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return NewClient(func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
	})
}

func TestClient(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathInfo, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"addresses":["192.168.64.2"]}`))
	})
	var setup Setup
	mux.HandleFunc("POST "+PathSetup, func(w http.ResponseWriter, req *http.Request) {
		assert.NoError(t, json.NewDecoder(req.Body).Decode(&setup))
		_ = json.NewEncoder(w).Encode(contract.ScriptResult{ExitCode: 3, OutputTail: "out"})
	})
	down := false
	mux.HandleFunc("POST "+PathShutdown, func(w http.ResponseWriter, _ *http.Request) {
		down = true
		w.WriteHeader(http.StatusAccepted)
	})
	c := serve(t, mux)
	info, err := c.Info(context.Background())
	require.NoError(t, err)
	assert.Equal(t, "192.168.64.2", info.Addresses[0].String())
	result, err := c.Setup(context.Background(), Setup{InstanceUID: "a", SSHAuthorizedKeys: []string{"key"}, StartupScript: "exit 3"})
	require.NoError(t, err)
	assert.EqualValues(t, 3, result.ExitCode)
	assert.Equal(t, "exit 3", setup.StartupScript)
	require.NoError(t, c.Shutdown(context.Background()))
	assert.True(t, down)
}

func TestClientDistrustsTheGuest(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathInfo, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"addresses":["` + strings.Repeat(" ", 2<<20) + `"]}`))
	})
	mux.HandleFunc("POST "+PathShutdown, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusForbidden)
	})
	c := serve(t, mux)
	_, err := c.Info(context.Background())
	require.ErrorContains(t, err, "unexpected EOF")
	require.ErrorContains(t, c.Shutdown(context.Background()), "403 Forbidden: no")
}
