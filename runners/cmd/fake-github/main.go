// Command fake-github is a GitHub with one scale set for tests. Its runners are stand-ins in
// simulated guests of this host.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"macrack.io/macrack/runners/pkg/github/githubtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if newCommand().ExecuteContext(ctx) != nil {
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var address, control, links string
	cmd := &cobra.Command{
		Use:          "fake-github",
		Short:        "A GitHub for tests",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			server, err := githubtest.New(address)
			if err != nil {
				return err
			}
			defer server.Close()
			listener, err := net.Listen("tcp", control)
			if err != nil {
				return err
			}
			go server.Link(cmd.Context(), links)
			controller := &http.Server{Handler: handler(server), ReadHeaderTimeout: 10 * time.Second}
			go func() {
				<-cmd.Context().Done()
				_ = controller.Close()
			}()
			fmt.Fprintln(cmd.OutOrStdout(), "ready")
			if err := controller.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				return err
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&address, "address", "", "The address of GitHub.")
	cmd.Flags().StringVar(&control, "control", "127.0.0.1:0", "The address of the control of the tests.")
	cmd.Flags().StringVar(&links, "links", "", "The pattern of the link folders of the stand-ins.")
	return cmd
}

// handler controls the server.
func handler(server *githubtest.Server) http.Handler {
	mux := http.NewServeMux()
	show := func(value func() any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(value()) }
	}
	mux.HandleFunc("GET /settings", show(func() any {
		return map[string]string{"url": server.URL(), "ca": server.CA(), "token": githubtest.Token, "install": githubtest.Install}
	}))
	mux.HandleFunc("GET /jobs", show(func() any { return server.Jobs() }))
	mux.HandleFunc("GET /runners", show(func() any { return server.Runners() }))
	mux.HandleFunc("GET /secrets", show(func() any { return server.Secrets() }))
	mux.HandleFunc("POST /jobs", func(_ http.ResponseWriter, r *http.Request) {
		duration, _ := time.ParseDuration(r.FormValue("duration"))
		count, _ := strconv.Atoi(r.FormValue("count"))
		for range count {
			server.Queue(duration)
		}
	})
	mux.HandleFunc("POST /faults/{fault}", func(_ http.ResponseWriter, r *http.Request) {
		switch r.PathValue("fault") {
		case "expire-token":
			server.ExpireToken()
		case "drop-session":
			server.DropSession()
		case "rate-limit":
			server.Fail(3, http.StatusTooManyRequests)
		}
	})
	return mux
}
