package console

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/terminal"
)

type options struct {
	port   int
	noOpen bool
}

// NewCommand returns the command ui.
func NewCommand(env *cmdutil.Env) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Open the console in the browser",
		Long: `Serve the console on this machine, and open it in the browser: racks, leases, queues, compliance, usage
and images, live. It shows the objects of all namespaces, or of the current one if you have no right to
see the others. With --namespace, it shows the leases and instances of that namespace only.

The address has a random token, which keeps other users of this machine out. The console changes nothing.
It ends with Ctrl-C.`,
		Example: `  # Open the console
  kubectl macrack ui

  # Open the console of a tenant
  kubectl macrack ui -n acme

  # Print the address, and open no browser
  kubectl macrack ui --port 8080 --no-open`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), env, o) },
	}
	cmd.Flags().IntVar(&o.port, "port", 0, "Port on the loopback interface. 0 selects a free port.")
	cmd.Flags().BoolVar(&o.noOpen, "no-open", false, "Do not open the browser. It also stays closed if the output is no terminal.")
	return cmd
}

func run(ctx context.Context, env *cmdutil.Env, o options) error {
	clients, err := env.Connect()
	if err != nil {
		return err
	}
	namespaces := []string{metav1.NamespaceAll, clients.Namespace}
	if clients.Explicit {
		namespaces = []string{clients.Namespace}
	}
	server, err := NewServer(clients, env.Clock, o.port, namespaces...)
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Out, "The console is at %s\nThe address is secret. Ctrl-C ends the console.\n", server.URL())
	if !o.noOpen && terminal.IsTerminal(env.Out, env.Getenv) {
		remove, err := openBrowser(server.URL())
		if err != nil {
			fmt.Fprintf(env.ErrOut, "%v; open the address yourself\n", err)
		} else {
			defer remove()
		}
	}
	return server.Run(ctx)
}
