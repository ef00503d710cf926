package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"

	"macrack.io/macrack/test/cluster"
)

// filterTable is the table of nftables that has the rules of a vanished node.
const filterTable = "macrack_failover"

// checkFilter reports why packets cannot be dropped on this machine.
func checkFilter(ctx context.Context) error {
	if err := nft(ctx, "list tables"); err != nil {
		return fmt.Errorf("a vanished node needs nftables; run as root with the package nftables installed: %w", err)
	}
	return nil
}

// A node has some components of the control plane.
type node struct {
	cluster   *cluster.Cluster
	leader    string // the leading controllers
	processes []string
	listeners []string // names of ports
}

// nodeOf returns the node that has the leading controllers, a macrack-apiserver and an etcd member.
func nodeOf(ctx context.Context, c *cluster.Cluster, apiserver, etcd string) (node, error) {
	leader, err := leader(ctx, c)
	return node{
		cluster:   c,
		leader:    leader,
		processes: []string{leader, apiserver, etcd},
		listeners: []string{apiserver, etcd, etcd + "-peer"},
	}, err
}

// while runs act while the node is gone: packets to and from its listeners are dropped rather than
// rejected, and its processes, which are also clients, send nothing.
func (n node) while(ctx context.Context, act func(context.Context) error) error {
	var ports []string
	for _, name := range n.listeners {
		ports = append(ports, fmt.Sprint(n.cluster.Port(name)))
	}
	list := strings.Join(ports, ", ")
	rules := fmt.Sprintf("table inet %s { chain input { type filter hook input priority 0; tcp dport { %s } drop; tcp sport { %s } drop; }; }", filterTable, list, list)
	signal := func(sig syscall.Signal) (err error) {
		for _, name := range n.processes {
			err = errors.Join(err, n.cluster.Signal(name, sig))
		}
		return err
	}
	err := errors.Join(nft(ctx, rules), signal(syscall.SIGSTOP))
	if err == nil {
		err = act(ctx)
	}
	return errors.Join(err, nft(context.WithoutCancel(ctx), "delete table inet "+filterTable), signal(syscall.SIGCONT))
}

// restartControllers restarts the controllers of the node, which exit when they notice that another
// replica leads.
func (n node) restartControllers(ctx context.Context) error { return n.cluster.Restart(ctx, n.leader) }

func nft(ctx context.Context, script string) error {
	out, err := exec.CommandContext(ctx, "nft", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
