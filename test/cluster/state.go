package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"macrack.io/macrack/test/cluster/process"
)

// ErrNoCluster means that a folder holds no cluster state.
var ErrNoCluster = errors.New("there is no cluster")

// StatePaths are the names of a cluster's files in its folder.
var StatePaths = []string{"cluster.json", "kubeconfig", "up.lock", "data", "deploy", "example", "kube", "kubectl-cache", "log", "macs", "pki", "registry", "run"}

// Reopen is Open with the options of the last Open of the cluster in dir.
func Reopen(dir string, progress io.Writer) (*Cluster, error) {
	data, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s; start one with `make up`", ErrNoCluster, dir)
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, stateFile), err)
	}
	s.Options.Dir, s.Options.Progress = dir, progress
	return Open(s.Options)
}

const stateFile = "cluster.json"

type state struct {
	Options Options `json:"options"`
	Ports   *ports  `json:"ports"`
}

func (c *Cluster) loadPorts() error {
	c.ports = &ports{Base: c.opts.PortBase}
	data, err := os.ReadFile(filepath.Join(c.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s := state{}
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(c.dir, stateFile), err)
	}
	if s.Ports != nil && s.Ports.Base == c.opts.PortBase {
		c.ports = s.Ports
	}
	return nil
}

func (c *Cluster) save() error {
	data, err := json.MarshalIndent(state{Options: c.opts, Ports: c.ports}, "", "  ")
	if err != nil {
		return err
	}
	return process.WriteFile(filepath.Join(c.dir, stateFile), append(data, '\n'), 0o644)
}
