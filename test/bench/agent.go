package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster/await"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/test/cluster"
)

// Bounds of an agent. They replace a peer, because no peer's virtual machines outlive its agent.
const (
	adoptionBound   = time.Second
	idleCPUBound    = 600 * time.Millisecond // a minute: 1 % of a core
	idleMemoryBound = 100                    // MB
)

// ticksPerSecond is the unit of times in /proc, the same on every Linux.
const ticksPerSecond = 100

// measureAgent measures an agent with two virtual machines: the time from its process' start to
// their adoption, and its cost while idle.
func (b *bench) measureAgent(ctx context.Context) (err error) {
	const name, lease = "mac-1", "bench"
	c, err := cluster.Start(ctx, cluster.Options{Apiservers: 1, Controllers: 1, Macs: 1, Example: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Stop()) }()
	clients, err := c.Clients(cluster.Admin)
	if err != nil {
		return err
	}
	namespace := cluster.Tenants[0]
	leases, instances := clients.MacRack.RackV1alpha1().MacNodeLeases(namespace), clients.MacRack.InstanceV1alpha1().MacOSInstances(namespace)
	if _, err := leases.Create(ctx, &rackv1alpha1.MacNodeLease{
		ObjectMeta: metav1.ObjectMeta{Name: lease}, Spec: rackv1alpha1.MacNodeLeaseSpec{ClassName: "base", SerialNumber: "SIM0000001"},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := until(ctx, func() (bool, error) {
		l, err := leases.Get(ctx, lease, metav1.GetOptions{})
		return err == nil && l.Status.Phase == rackv1alpha1.MacNodeLeaseBound, err
	}); err != nil {
		return fmt.Errorf("the lease is not bound: %w", err)
	}
	for _, vm := range []string{"one", "two"} {
		if _, err := instances.Create(ctx, &instancev1alpha1.MacOSInstance{
			ObjectMeta: metav1.ObjectMeta{Name: vm},
			Spec:       instancev1alpha1.MacOSInstanceSpec{LeaseName: lease, ClassName: "small", ImageName: "macos-26-xcode-26"},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		if err := until(ctx, func() (bool, error) {
			i, err := instances.Get(ctx, vm, metav1.GetOptions{})
			return err == nil && i.Status.Phase == instancev1alpha1.MacOSInstanceRunning && i.Status.IPAddress != nil, err
		}); err != nil {
			return fmt.Errorf("instance %s does not run: %w", vm, err)
		}
	}

	var took []time.Duration
	for range b.adoptions {
		if err := c.Kill(ctx, name); err != nil {
			return err
		}
		log, err := os.ReadFile(c.LogFile(name))
		if err != nil {
			return err
		}
		if err := c.Restart(ctx, name); err != nil {
			return err
		}
		var d time.Duration
		if err := until(ctx, func() (bool, error) {
			d, err = adoption(c.LogFile(name), len(log), c.PID(name))
			return d > 0, err
		}); err != nil {
			return fmt.Errorf("the agent does not report that it runs: %w", err)
		}
		took = append(took, d)
	}
	b.alone("start of an agent until it has its two VMs again", "ms", allMS(took), ms(adoptionBound))

	// The work after a start is not idleness.
	if err := await.Sleep(ctx, b.idle/4); err != nil {
		return err
	}
	var cpu, memory []float64
	for range b.rounds {
		before, err := processTime(c.PID(name))
		if err != nil {
			return err
		}
		if err := await.Sleep(ctx, b.idle); err != nil {
			return err
		}
		after, err := processTime(c.PID(name))
		if err != nil {
			return err
		}
		resident, err := rss(ctx, c.PID(name))
		if err != nil {
			return err
		}
		cpu = append(cpu, ms(after-before)*float64(time.Minute)/float64(b.idle))
		memory = append(memory, resident)
	}
	b.alone("idle agent with two VMs, CPU time per minute", "ms", cpu, ms(idleCPUBound))
	b.alone("the same, memory", "MB", memory, idleMemoryBound)
	return nil
}

// adoption returns the time from the start of an agent's process to the log line about the adoption
// of two virtual machines; 0 if there is no such line yet. Only the log from skip on counts.
func adoption(path string, skip, pid int) (time.Duration, error) {
	log, err := os.ReadFile(path)
	if err != nil || len(log) < skip {
		return 0, err
	}
	for line := range bytes.Lines(log[skip:]) {
		text := string(line)
		if !strings.Contains(text, `"Agent started"`) {
			continue
		}
		if !strings.Contains(text, "adopted=2") {
			return 0, fmt.Errorf("the agent has not adopted both: %s", text)
		}
		// I1129 17:09:09.689160 ...
		at, err := time.ParseInLocation("20060102 15:04:05.000000", fmt.Sprintf("%d%s", time.Now().Year(), text[1:len("I1129 17:09:09.689160")]), time.Local)
		if err != nil {
			return 0, err
		}
		began, err := processStart(pid)
		return at.Sub(began), err
	}
	return 0, nil
}

// stat returns the fields of /proc/PID/stat after the program's name, the first being the state.
func stat(pid int) ([]string, error) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return fields, nil
}

func processTime(pid int) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	user, userErr := strconv.ParseInt(fields[11], 10, 64)
	system, systemErr := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / ticksPerSecond, errors.Join(userErr, systemErr)
}

// processStart is exact to a tick, which is 10 ms.
func processStart(pid int) (time.Time, error) {
	fields, err := stat(pid)
	if err != nil {
		return time.Time{}, err
	}
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		return time.Time{}, err
	}
	uptime, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, err
	}
	up, err := strconv.ParseFloat(strings.Fields(string(uptime))[0], 64)
	if err != nil {
		return time.Time{}, err
	}
	age := time.Duration(up*float64(time.Second)) - time.Duration(ticks)*time.Second/ticksPerSecond
	return time.Now().Add(-age), nil
}

// until polls until is returns true; its errors explain a timeout.
func until(ctx context.Context, is func() (bool, error)) error {
	return await.Success(ctx, 2*time.Minute, 50*time.Millisecond, func() error {
		ok, err := is()
		if !ok && err == nil {
			err = errors.New("the condition does not hold")
		}
		if ok {
			return nil
		}
		return err
	})
}
