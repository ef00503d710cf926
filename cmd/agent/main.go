// Command macrack-agent runs on each Mac: it joins the cluster as a node and turns
// placeholder pods into virtual machines.
package main

import (
	"fmt"
	"os"

	"k8s.io/component-base/cli"
)

func main() {
	if err := cli.RunNoErrOutput(newCommand()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
