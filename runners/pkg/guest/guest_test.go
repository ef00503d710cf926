package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
)

// streams are the streams of a command: standard input, output and error, and its status.
type streams struct {
	in              io.Reader
	out, err, state io.WriteCloser
}

// command is a command in a guest. It returns its exit code, or -1 if the connection breaks.
type command func(request *http.Request, s streams) int

// server is an API server whose only resource is pods/exec.
type server struct {
	run command
	// spdyOnly makes it refuse websockets, as an old proxy does.
	spdyOnly bool
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path != "/api/v1/namespaces/acme/pods/one-vm/exec":
		http.NotFound(w, r)
	case r.Method == http.MethodPost:
		s.spdy(w, r)
	case s.spdyOnly:
		http.Error(w, "websockets are not supported", http.StatusBadRequest)
	default:
		s.websocket(w, r)
	}
}

func (s *server) websocket(w http.ResponseWriter, r *http.Request) {
	channels := []wsstream.ChannelType{wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.IgnoreChannel}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: channels}})
	_, opened, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer conn.Close()
	all := streams{strings.NewReader(""), opened[1], opened[2], opened[3]}
	if r.FormValue("stdin") == "true" {
		all.in = opened[0]
	}
	s.serve(r, all)
}

func (s *server) spdy(w http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"}); err != nil {
		return
	}
	opened := make(chan httpstream.Stream, 8)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(stream httpstream.Stream, _ <-chan struct{}) error {
		opened <- stream
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	all := streams{in: strings.NewReader("")}
	wanted := 3
	if r.FormValue("stdin") == "true" {
		wanted++
	}
	for range wanted {
		stream := <-opened
		switch stream.Headers().Get(corev1.StreamType) {
		case corev1.StreamTypeStdin:
			all.in = stream
		case corev1.StreamTypeStdout:
			all.out = stream
		case corev1.StreamTypeStderr:
			all.err = stream
		case corev1.StreamTypeError:
			all.state = stream
		}
	}
	s.serve(r, all)
}

func (s *server) serve(r *http.Request, all streams) {
	code := s.run(r, all)
	if code < 0 {
		return
	}
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code > 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code)}},
		}}
	}
	_ = json.NewEncoder(all.state).Encode(status)
	for _, stream := range []io.Closer{all.out, all.err, all.state} {
		stream.Close()
	}
}

// pods returns an Executor that talks to a server, and an instance.
func pods(t *testing.T, s *server) (*Pods, *instancev1alpha1.MacOSInstance) {
	t.Helper()
	api := httptest.NewServer(s)
	t.Cleanup(api.Close)
	executor, err := New(&rest.Config{Host: api.URL})
	require.NoError(t, err)
	instance := &instancev1alpha1.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: "acme", Name: "one"}}
	instance.Status.PodName = "one-vm"
	return executor, instance
}

func TestOutput(t *testing.T) {
	for name, spdyOnly := range map[string]bool{"websockets": false, "SPDY": true} {
		t.Run(name, func(t *testing.T) {
			var arguments []string
			executor, instance := pods(t, &server{spdyOnly: spdyOnly, run: func(r *http.Request, s streams) int {
				arguments = r.URL.Query()["command"]
				in, err := io.ReadAll(s.in)
				if err != nil {
					return 1
				}
				fmt.Fprintf(s.err, "a warning")
				fmt.Fprintf(s.out, "read %s", in)
				return 0
			}})
			output, err := Output(t.Context(), executor, instance, strings.NewReader("a secret"), "cat")
			require.NoError(t, err)
			assert.Equal(t, "read a secret", output)
			assert.Equal(t, []string{"/bin/sh", "-c", "cat"}, arguments, "the standard input is in no argument")
			output, err = Output(t.Context(), executor, instance, nil, "true")
			require.NoError(t, err)
			assert.Equal(t, "read ", output)
		})
	}
}

func TestExitCode(t *testing.T) {
	executor, instance := pods(t, &server{run: func(_ *http.Request, s streams) int {
		fmt.Fprintln(s.err, "no such file")
		return 3
	}})
	code, err := executor.Execute(t.Context(), instance, nil, io.Discard, io.Discard, "false")
	require.NoError(t, err)
	assert.Equal(t, 3, code)
	_, err = Output(t.Context(), executor, instance, nil, "false")
	assert.EqualError(t, err, `command in the guest of instance "one": exit code 3: no such file`)
}

// After a broken connection, the output is incomplete. Callers look for its end.
func TestABrokenConnection(t *testing.T) {
	executor, instance := pods(t, &server{run: func(_ *http.Request, s streams) int {
		fmt.Fprint(s.out, "begin")
		return -1
	}})
	output, err := Output(t.Context(), executor, instance, nil, "long")
	if err == nil {
		assert.Equal(t, "begin", output)
	}
}

func TestTheEndOfTheContextEndsACommand(t *testing.T) {
	ended := make(chan struct{})
	executor, instance := pods(t, &server{run: func(*http.Request, streams) int {
		<-ended
		return -1
	}})
	t.Cleanup(func() { close(ended) })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := Output(ctx, executor, instance, nil, "sleep 1000")
	assert.ErrorContains(t, err, `command in the guest of instance "one"`)
}

func TestAnInstanceThatHasNoPod(t *testing.T) {
	executor, instance := pods(t, &server{})
	instance.Status.PodName = "other-vm"
	_, err := Output(t.Context(), executor, instance, nil, "true")
	assert.Error(t, err)
	instance.Status.PodName = ""
	_, err = Output(t.Context(), executor, instance, nil, "true")
	assert.ErrorContains(t, err, `instance "one" has no placeholder pod yet`)
}

func TestOutputIsBounded(t *testing.T) {
	executor, instance := pods(t, &server{run: func(_ *http.Request, s streams) int {
		fmt.Fprint(s.out, strings.Repeat("a", maxOutput+1))
		return 0
	}})
	output, err := Output(t.Context(), executor, instance, nil, "yes")
	require.NoError(t, err)
	assert.Equal(t, maxOutput, len(output)) // without the output in a failure
}
