package contract

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// Client is a client of the runner of one slot.
type Client struct {
	dir  SlotDir
	http *http.Client
}

// NewClient returns a client for the socket of dir. It connects on use, and only to a socket of the
// slot's owner.
func NewClient(dir SlotDir) *Client {
	return &Client{dir: dir, http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dir.Dial(ctx)
		},
	}}}
}

// Connect connects to a vsock port of the guest. The connection ends with the VM.
func (c *Client) Connect(ctx context.Context, port uint32) (net.Conn, error) {
	return c.connect(ctx, PathConnect, UpgradeVsock, uint64(port))
}

// Dial connects to a TCP port of an isolated guest. The connection ends with the VM.
func (c *Client) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	return c.connect(ctx, PathDial, UpgradeTCP, uint64(port))
}

func (c *Client) connect(ctx context.Context, path, protocol string, port uint64) (net.Conn, error) {
	conn, err := c.dir.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	reader, err := upgrade(conn, path, protocol, port)
	if !stop() && err == nil {
		err = ctx.Err() // the deadline is set, or is about to be
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return &upgraded{Conn: conn, reader: reader}, nil
}

// upgrade returns a reader of the guest's data.
func upgrade(conn net.Conn, path, protocol string, port uint64) (*bufio.Reader, error) {
	req, err := http.NewRequest(http.MethodPost, fmt.Sprintf("http://vm%s?port=%d", path, port), nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", protocol)
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	reader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(reader, req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, refusal(req, resp)
	}
	return reader, nil
}

// upgraded is a connection with data that was read ahead.
type upgraded struct {
	net.Conn
	reader *bufio.Reader
}

func (u *upgraded) Read(p []byte) (int, error) { return u.reader.Read(p) }

// CloseWrite ends the direction to the guest.
func (u *upgraded) CloseWrite() error {
	half, ok := u.Conn.(halfCloser)
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// State returns the current state. If the runner does not respond before ctx's deadline, State
// returns an error, and the caller decides.
func (c *Client) State(ctx context.Context) (*State, error) {
	return c.do(ctx, http.MethodGet, PathState, nil)
}

// Stop requests a stop with a grace period of at most MaxGrace.
func (c *Client) Stop(ctx context.Context, grace time.Duration) (*State, error) {
	grace = min(max(grace, 0), MaxGrace)
	return c.do(ctx, http.MethodPost, PathStop, StopRequest{GraceSeconds: int64((grace + time.Second - 1) / time.Second)})
}

// Kill forces the VM off.
func (c *Client) Kill(ctx context.Context) (*State, error) {
	return c.do(ctx, http.MethodPost, PathKill, nil)
}

// Watch calls on with each state until the runner ends the stream or dies, or ctx ends. It always
// returns an error; io.EOF means an orderly end of the runner.
func (c *Client) Watch(ctx context.Context, on func(State)) error {
	resp, err := c.send(ctx, http.MethodGet, PathWatch, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var s State
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		on(s)
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.EOF
}

func (c *Client) do(ctx context.Context, method, path string, body any) (*State, error) {
	resp, err := c.send(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var s State
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return &s, nil
}

func (c *Client) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		reader = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://vm"+path, reader)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, refusal(req, resp)
	}
	return resp, nil
}

func refusal(req *http.Request, resp *http.Response) error {
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	return fmt.Errorf("%s %s: %s: %s", req.Method, req.URL.Path, resp.Status, strings.TrimSpace(string(text)))
}
