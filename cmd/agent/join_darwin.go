package main

import (
	"fmt"

	"macrack.io/macrack/pkg/agent/slots"
)

func (o *joinOptions) sayWhatNext() {
	fmt.Fprintf(o.out, "The agent joins within a minute, or at once with: sudo launchctl kickstart -k %s/%s\nVirtual machines continue to run.\nThen run: macrack-agent doctor\n",
		slots.AgentDomain, slots.AgentLabel)
}
