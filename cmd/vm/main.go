// Command macrack-vm runs one virtual machine in one slot of a Mac.
package main

import (
	"os"

	"k8s.io/component-base/cli"
)

func main() { os.Exit(cli.Run(newCommand())) }
