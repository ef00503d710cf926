package main

import (
	"fmt"
	"os"

	"macrack.io/macrack/pkg/agent/slots"
)

func (o *joinOptions) sayWhatNext() {
	fmt.Fprintf(o.out, "The agent takes this up within a minute, or at once with: launchctl kickstart -k %s/%s\nVirtual machines run on.\nThen: macrack-agent doctor\n",
		slots.LaunchdDomain(os.Getuid()), slots.AgentLabel)
}
