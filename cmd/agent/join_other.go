//go:build !darwin

package main

import "fmt"

func (o *joinOptions) sayWhatNext() {
	fmt.Fprintf(o.out, "Start the agent: macrack-agent run --state-dir %s\n", o.stateDir)
}
