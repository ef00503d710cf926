package cluster

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
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
	port, err := p.pick()
	if err != nil {
		return 0, err
	}
	if p.Used == nil {
		p.Used = map[string]int{}
	}
	p.Used[name] = port
	return port, nil
}

// pick finds a free port below the ephemeral range: a port from that range could be taken before
// its component starts or restarts.
func (p *ports) pick() (int, error) {
	taken := map[int]bool{}
	for _, port := range p.Used {
		taken[port] = true
	}
	for range 1000 {
		port := 20000 + rand.IntN(12000)
		if !taken[port] && portFree(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free loopback port found between 20000 and 32000")
}

// portFree returns an error that names the owner if the loopback port is in use.
func portFree(port int) error {
	// Right after a kill the kernel may need a moment.
	var err error
	for range 5 {
		var l net.Listener
		if l, err = net.Listen("tcp", loopback(port)); err == nil {
			return l.Close()
		}
		time.Sleep(100 * time.Millisecond)
	}
	owner := listenerOwner(port)
	if owner == "" {
		return fmt.Errorf("checking port %d on 127.0.0.1: %w", port, err)
	}
	return fmt.Errorf("port %d on 127.0.0.1 is in use by %s; end that program, or choose other ports", port, owner)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// listenerOwner names the process that listens on a port, or returns "" if it cannot be determined.
func listenerOwner(port int) string {
	if inode := listenerInode(port); inode != "" {
		fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
				pid := strings.Split(fd, "/")[2]
				cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				return fmt.Sprintf("process %s (%s)", pid, strings.TrimSpace(strings.ReplaceAll(string(cmdline[:min(len(cmdline), 120)]), "\x00", " ")))
			}
		}
		return "a process of another user"
	}
	out, err := exec.Command("lsof", "-nP", "-iTCP:"+strconv.Itoa(port), "-sTCP:LISTEN", "-Fpc").Output()
	if err != nil {
		return ""
	}
	pid, command, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	command, _, _ = strings.Cut(command, "\n")
	return fmt.Sprintf("process %s (%s)", strings.TrimPrefix(pid, "p"), strings.TrimPrefix(command, "c"))
}

func listenerInode(port int) string {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			const listen = "0A"
			if len(fields) > 9 && fields[3] == listen && strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				f.Close()
				return fields[9]
			}
		}
		f.Close()
	}
	return ""
}
