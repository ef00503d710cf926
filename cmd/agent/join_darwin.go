package main

import (
	"fmt"
	"os"

	"macrack.io/macrack/pkg/agent/slots"
)

func (o *joinOptions) sayWhatNext() {
	fmt.Fprintf(o.out, "The agent starts by itself within seconds, or at once with: launchctl kickstart %s/%s\nThen: macrack-agent doctor\n",
		slots.LaunchdDomain(os.Getuid()), slots.AgentLabel)
}
