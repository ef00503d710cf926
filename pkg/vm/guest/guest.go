// Package guest is what a runner and the agent inside its guest say to each
// other: HTTP over a connection to one port of the guest, a vsock on a Mac.
package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"macrack.io/macrack/pkg/vm/contract"
)

// Port is the vsock port on which the guest agent listens.
const Port = 1026

// Paths of the guest agent's API.
const (
	PathInfo     = "/v1/info"     // GET: Info
	PathSetup    = "/v1/setup"    // POST Setup: contract.ScriptResult once the script has ended
	PathShutdown = "/v1/shutdown" // POST: 202, and the guest shuts down
)

// Info is what a guest says of itself.
type Info struct {
	// Addresses are its IP addresses, the most useful first.
	Addresses []netip.Addr `json:"addresses"`
}

// Setup is what a new guest is given. The guest agent does it once, and answers a
// repeated request with the first result.
type Setup struct {
	InstanceUID       string   `json:"instanceUID"`
	SSHAuthorizedKeys []string `json:"sshAuthorizedKeys,omitempty"`
	StartupScript     string   `json:"startupScript,omitempty"`
}

// Client speaks to one guest's agent.
type Client struct {
	http *http.Client
}

// NewClient returns a client that reaches the guest through dial.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	return &Client{http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}}}
}

// Info asks the guest about itself. An answer means that the guest is ready.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	var info Info
	return &info, c.do(ctx, http.MethodGet, PathInfo, nil, &info)
}

// Setup gives the guest its keys and its script, and returns how that went.
func (c *Client) Setup(ctx context.Context, setup Setup) (*contract.ScriptResult, error) {
	var result contract.ScriptResult
	return &result, c.do(ctx, http.MethodPost, PathSetup, setup, &result)
}

// Shutdown asks the guest to shut down, and does not wait for it.
func (c *Client) Shutdown(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, PathShutdown, nil, nil)
}

func (c *Client) do(ctx context.Context, method, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://guest"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	// A guest is the tenant's: its answers are not trusted to be small.
	reader := io.LimitReader(resp.Body, 1<<20)
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(reader, 1<<10))
		return fmt.Errorf("guest agent: %s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(text)))
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(reader).Decode(answer)
}
