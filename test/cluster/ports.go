package cluster

import (
	"fmt"
	"maps"
	"slices"

	"macrack.io/macrack/test/cluster/process"
)

const (
	maxEtcdMembers = 3
	maxReplicas    = 3  // of macrack-apiserver and of macrack-controllers
	maxMacs        = 32 // agents in one cluster
)

// portOffsets are the places of the components in a block of fixed ports. Agents follow from
// agentOffset on.
var portOffsets = map[string]int{
	"kube-apiserver":          0,
	"etcd":                    1,
	"etcd-peer":               2,
	"kube-controller-manager": 3,
	"kube-scheduler":          4,
	"balancer":                5,
	"macrack-etcd-1":          6,
	"macrack-etcd-1-peer":     7,
	"macrack-etcd-2":          8,
	"macrack-etcd-2-peer":     9,
	"macrack-etcd-3":          10,
	"macrack-etcd-3-peer":     11,
	"macrack-apiserver-1":     12,
	"macrack-apiserver-2":     13,
	"macrack-apiserver-3":     14,
	"macrack-controllers-1":   15,
	"macrack-controllers-2":   16,
	"macrack-controllers-3":   17,
	"registry":                18,
}

const agentOffset = 20

// ports assigns a loopback port to every listener of a cluster: at a fixed offset from base, or any
// free port if base is 0.
type ports struct {
	Base int            `json:"base"`
	Used map[string]int `json:"used"`
}

func (p *ports) of(name string) (int, error) {
	if p.Base != 0 {
		if offset, ok := portOffsets[name]; ok {
			return p.Base + offset, nil
		}
		var mac int
		if _, err := fmt.Sscanf(name, "mac-%d", &mac); err != nil {
			return 0, fmt.Errorf("no port is reserved for %q", name)
		}
		return p.Base + agentOffset + mac - 1, nil
	}
	if port, ok := p.Used[name]; ok {
		return port, nil
	}
	port, err := process.FreePort(slices.Collect(maps.Values(p.Used))...)
	if err != nil {
		return 0, err
	}
	if p.Used == nil {
		p.Used = map[string]int{}
	}
	p.Used[name] = port
	return port, nil
}
