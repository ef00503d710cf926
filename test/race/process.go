package race

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"macrack.io/macrack/test/cluster/etcd"
	"macrack.io/macrack/test/cluster/process"

	"macrack.io/macrack/test/registrytest"
)

// childEnv has the role of a child process, which runs the same binary.
const childEnv = "MACRACK_RACE_CHILD"

// A role is that of a child process: a server, or a member of etcd.
type role struct {
	Listen string // host:port

	// Of a server.
	Etcd  []string
	Clock string
	Skew  time.Duration

	// Of a member of etcd.
	Member, Peer, Cluster, Dir string
}

// Child runs this process as a part of a race if it was started for that, and does not return then.
// Programs that call Run must call it first.
func Child() {
	value := os.Getenv(childEnv)
	if value == "" {
		return
	}
	process.ExitWithParent()
	var r role
	err := json.Unmarshal([]byte(value), &r)
	if err == nil && r.Member != "" {
		err = r.runEtcd()
	} else if err == nil {
		err = r.runServer()
	}
	fmt.Fprintln(os.Stderr, "race: the process failed:", err)
	os.Exit(1)
}

func (r *role) runServer() error {
	clock, err := openClock(r.Clock, r.Skew)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", r.Listen)
	if err != nil {
		return err
	}
	applyFaults()
	return registrytest.Serve(context.Background(), r.Etcd, listener, clock)
}

func (r *role) runEtcd() error {
	member, err := etcd.Member{Name: r.Member, Dir: r.Dir, Client: r.Listen, Peer: r.Peer, Cluster: r.Cluster, Quota: 16 << 30}.Start()
	if err != nil {
		return err
	}
	return <-member.Err()
}

// A child is a process of a race that can be killed and restarted.
type child struct {
	process.Child
	role role
}

func newChild(dir, name string, role role) (*child, error) {
	value, err := json.Marshal(role)
	if err != nil {
		return nil, err
	}
	return &child{role: role, Child: process.Child{
		Name: name, LogFile: filepath.Join(dir, name+".log"), Env: []string{"GOGC=400", childEnv + "=" + string(value)},
	}}, nil
}
