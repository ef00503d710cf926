package chaos

import (
	"context"
	"path/filepath"
	"time"

	"macrack.io/macrack/test/cluster/kubeconfig"

	"macrack.io/macrack/pkg/agent"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	"macrack.io/macrack/pkg/apiclient"
	"macrack.io/macrack/pkg/vm/faults"
	"macrack.io/macrack/pkg/vm/sim"
)

// AgentOptions are the flags of an agent's process.
type AgentOptions struct {
	NodeName, Kubeconfig, StateDir, HostDir, VMBinary string
}

// answerTimeout is the time that a runner may be silent. It is shorter than the default, to keep
// the tests short.
const answerTimeout = 2 * time.Second

// RunAgent runs the agent of a Mac like macrack-agent, but without joining the cluster: it already
// has a kubeconfig, and its images are generated.
func RunAgent(ctx context.Context, o AgentOptions) error {
	client, err := kubeconfig.Config(o.Kubeconfig, "")
	if err != nil {
		return err
	}
	client.QPS = 0 // as macrack-agent
	clients, err := kubeconfig.ClientsOf(apiclient.BoundRequests(client, apiclient.RequestTimeout))
	if err != nil {
		return err
	}
	process := &slots.Process{Binary: o.VMBinary, Args: []string{"--backend=sim", "--sim-host-dir=" + o.HostDir}}
	clock := faults.Clock()
	a, err := agent.New(agent.Config{
		NodeName: o.NodeName, Kube: clients.Kube, Macrack: clients.MacRack, StateDir: o.StateDir, Clock: clock, Version: "v0.0.0-chaos",
		Host:     &host.Simulated{Dir: sim.HostDir(o.HostDir), StateDir: o.StateDir},
		Launcher: process, NewMachineID: process.NewMachineID,
		Images:        &images.Simulated{Dir: filepath.Join(o.StateDir, "images"), Clock: clock},
		AnswerTimeout: answerTimeout, ProbeInterval: time.Second,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
