package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// Options are the parts of a cluster. The zero value is a control plane, and an etcd for macrack,
// in a temporary folder on free ports.
type Options struct {
	// Dir holds the state: keys, data, logs, pid files. The cluster of an existing folder is
	// continued. Empty: a temporary folder, which Stop removes.
	Dir string `json:"-"`
	// PortBase is the first of the fixed ports. 0: free ports, which stay the same for the life of
	// Dir.
	PortBase int `json:"portBase,omitempty"`

	// EtcdMembers is the size of macrack's own etcd: 1 (the default) or 3.
	EtcdMembers int `json:"etcdMembers,omitempty"`
	// Apiservers is the number of replicas of macrack-apiserver. If there are any, the applicable
	// parts of artifacts/deploy are applied, and the API is served through kube-apiserver.
	Apiservers int `json:"apiservers,omitempty"`
	// Controllers is the number of replicas of macrack-controllers, one of them the leader.
	Controllers int `json:"controllers,omitempty"`
	// Macs is the number of agents with simulated Macs, named mac-1, mac-2, ...
	Macs int `json:"macs,omitempty"`
	// Example applies artifacts/example: the catalogue, two tenants and three Macs.
	Example bool `json:"example,omitempty"`
	// Sync makes etcd sync to the disk as in production. Without it, data survives crashes of
	// processes, but not of the machine.
	Sync bool `json:"sync,omitempty"`
	// Address is that of kube-apiserver for other machines. Empty: kube-apiserver serves on
	// loopback only.
	Address string `json:"address,omitempty"`
	// ExtraArgs are added to the command line of a component, by its name without a number
	// (macrack-apiserver).
	ExtraArgs map[string][]string `json:"extraArgs,omitempty"`

	// Direct adds the balancer's port to the user's kubeconfig, although the caller starts the
	// macrack-apiserver behind it.
	Direct bool `json:"direct,omitempty"`
	// Keep restarts components that end unexpectedly, while this program runs.
	Keep bool `json:"keep,omitempty"`

	// Detach runs the balancer as a separate process, so that the cluster outlives this program. It
	// also starts the keeper, which restarts crashed components as a kubelet or launchd would.
	Detach bool `json:"detach,omitempty"`

	// Progress receives progress messages. Default: standard error.
	Progress io.Writer `json:"-"`
}

func (o *Options) complete() error {
	if o.EtcdMembers == 0 {
		o.EtcdMembers = 1
	}
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	switch {
	case o.EtcdMembers != 1 && o.EtcdMembers != maxEtcdMembers:
		return fmt.Errorf("invalid number of etcd members %d; use 1 or %d", o.EtcdMembers, maxEtcdMembers)
	case o.Apiservers < 0 || o.Apiservers > maxReplicas || o.Controllers < 0 || o.Controllers > maxReplicas:
		return fmt.Errorf("invalid number of replicas: %d macrack-apiservers and %d macrack-controllers; use 0 to %d of each", o.Apiservers, o.Controllers, maxReplicas)
	case o.Macs < 0 || o.Macs > maxMacs:
		return fmt.Errorf("invalid number of Macs %d; use 0 to %d", o.Macs, maxMacs)
	case o.Apiservers == 0 && (o.Controllers > 0 || o.Macs > 0 || o.Example):
		return errors.New("controllers, Macs and the example need at least one macrack-apiserver")
	}
	return nil
}
