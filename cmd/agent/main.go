// Command macrack-agent runs on each Mac: it joins the cluster as a node and turns
// placeholder pods into virtual machines.
package main

import (
	"os"

	"k8s.io/component-base/cli"
)

func main() { os.Exit(cli.Run(newCommand())) }
