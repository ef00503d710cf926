package network

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A guest cannot send broadcasts to a network that is allowed. The loopback network is one that
// every machine has.
func TestNoBroadcasts(t *testing.T) {
	outside := &Outside{}
	outside.setDefaults()
	conn, err := outside.Dial(t.Context(), "udp", netip.MustParseAddrPort("127.255.255.255:9"))
	if err == nil { // macOS refuses the datagram instead
		defer conn.Close()
		_, err = conn.Write([]byte("hello"))
	}
	require.ErrorIs(t, err, syscall.EACCES)
}
