// Command macrack-guest-agent runs inside a virtual machine and serves its host.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"macrack.io/macrack/pkg/vm/guest/agent"
)

func main() { os.Exit(cli.Run(agent.NewCommand())) }
