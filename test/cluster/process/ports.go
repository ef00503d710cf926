package process

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// CheckPort returns an error that names the owner if the loopback port is in use.
func CheckPort(port int) error {
	// Right after a kill the kernel may need a moment.
	var err error
	for range 5 {
		var l net.Listener
		if l, err = net.Listen("tcp", Loopback(port)); err == nil {
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

// Loopback returns the address of a port on loopback.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

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

// FreePort returns a free port other than those taken. It is below the ephemeral range: a port of
// that range could be taken before its component starts or restarts.
func FreePort(taken ...int) (int, error) {
	for range 1000 {
		port := 20000 + rand.IntN(12000)
		if !slices.Contains(taken, port) && CheckPort(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free loopback port found between 20000 and 32000")
}

// FreeAddresses returns n free addresses on loopback.
func FreeAddresses(n int) ([]string, error) {
	var ports []int
	var addresses []string
	for range n {
		port, err := FreePort(ports...)
		if err != nil {
			return nil, err
		}
		ports, addresses = append(ports, port), append(addresses, Loopback(port))
	}
	return addresses, nil
}

// Listen listens on a loopback port; 0: any free port.
func Listen(port int) (net.Listener, error) { return net.Listen("tcp", Loopback(port)) }
