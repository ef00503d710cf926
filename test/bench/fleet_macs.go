package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/vm/contract"
	"macrack.io/macrack/pkg/vm/sim"
	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/process"
)

// macsCommand starts this program as many Macs. It prints the line started.
const macsCommand, started = "macs", "started"

func fleetMac(n int) string { return fmt.Sprintf("bench-%04d", n) }

func fleetSerial(n int) string { return fmt.Sprintf("BENCH%06d", n) }

// runMacs runs the agents of many Macs in this program, until it is terminated. The agents, their
// kubelets and their slots are the real ones; their guests boot at once, inside this process.
func runMacs(args []string) error {
	flags := flag.NewFlagSet(macsCommand, flag.ContinueOnError)
	dir, kube := flags.String("dir", "", "state of the Macs"), flags.String("kube", "", "folder of the kubeconfigs")
	from, to := flags.Int("from", 0, "the first Mac"), flags.Int("to", 0, "the Mac after the last")
	if err := flags.Parse(args); err != nil {
		return err
	}
	klog.SetLogger(klog.Logger{}) // the logs of so many agents would slow them down
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, *to-*from)
	var running sync.WaitGroup
	for n := *from; n < *to; n++ {
		a, err := newBenchMac(*dir, filepath.Join(*kube, fleetMac(n)), n)
		if err != nil {
			return err
		}
		running.Go(func() { ended <- a.Run(ctx) })
	}
	fmt.Println(started)
	select {
	case <-ctx.Done():
		return nil // all agents end with this process
	case err := <-ended:
		return fmt.Errorf("an agent has ended: %w", err)
	}
}

func newBenchMac(dir, path string, n int) (*agent.Agent, error) {
	clients, err := kubeconfig.Load(path)
	if err != nil {
		return nil, err
	}
	name := fleetMac(n)
	state, hostDir := filepath.Join(dir, name, "s"), sim.HostDir(filepath.Join(dir, name, "h"))
	if err := errors.Join(os.MkdirAll(state, 0o700), hostDir.Init(fleetSerial(n), name+"-boot"), hostDir.SetGuest(contract.Simulation{})); err != nil {
		return nil, err
	}
	real := clock.RealClock{}
	return agent.New(agent.Config{
		NodeName: name, Kube: clients.Kube, Macrack: clients.MacRack, StateDir: state, Clock: real, Version: "v0.0.0-bench",
		Host:         &host.Simulated{Dir: hostDir, StateDir: state},
		Launcher:     &slots.InProcess{Backend: &sim.Backend{Host: hostDir, Clock: real}, Clock: real},
		NewMachineID: func(context.Context) (string, error) { return sim.NewMachineID(), nil },
		Images:       &images.Simulated{Dir: filepath.Join(state, "images"), Clock: real},
	})
}

// startMacs registers the Macs and starts their agents in a few processes.
func (f *fleet) startMacs(ctx context.Context) error {
	// Each Mac has its own simulated disk: the disk of this machine is not measured.
	base := "/dev/shm"
	if _, err := os.Stat(base); err != nil {
		base = f.dir
	}
	var err error
	if f.state, err = os.MkdirTemp(base, "macs-"); err != nil {
		return err
	}
	kube := filepath.Join(f.dir, "kube")
	if err := os.MkdirAll(kube, 0o700); err != nil {
		return err
	}
	for n := range f.fleet {
		path, err := f.cluster.Kubeconfig("system:node:" + fleetMac(n))
		if err != nil {
			return err
		}
		link := filepath.Join(kube, fleetMac(n))
		_ = os.Remove(link) // of an earlier part
		if err := os.Symlink(path, link); err != nil {
			return err
		}
		if _, err := f.macrack.RackV1alpha1().MacNodes().Create(ctx, &rackv1alpha1.MacNode{
			ObjectMeta: metav1.ObjectMeta{Name: fleetMac(n)}, Spec: rackv1alpha1.MacNodeSpec{SerialNumber: fleetSerial(n), ClassName: "base"},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for from := 0; from < f.fleet; from += macsPerProcess {
		p := &process.Child{
			Name: fmt.Sprintf("the Macs from %d on", from), Prints: started,
			Args: []string{macsCommand, "-dir", f.state, "-kube", kube, "-from", fmt.Sprint(from), "-to", fmt.Sprint(min(from+macsPerProcess, f.fleet))},
		}
		if err := p.Start(); err != nil {
			return err
		}
		f.macs = append(f.macs, p)
	}
	return nil
}

func (f *fleet) stopMacs() {
	for _, p := range f.macs {
		p.Stop()
	}
	_ = os.RemoveAll(f.state)
}
