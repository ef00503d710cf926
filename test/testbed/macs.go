package testbed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/build"
	"macrack.io/macrack/test/cluster/kubeconfig"
	"macrack.io/macrack/test/cluster/process"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/agent"
	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/pkg/agent/host"
	"macrack.io/macrack/pkg/agent/images"
	"macrack.io/macrack/pkg/agent/slots"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/controllers"
	"macrack.io/macrack/pkg/vm/sim"
	"macrack.io/macrack/test/cluster"
)

// StartControllers starts the controllers after StopControllers. Start has started them before.
func (tb *Testbed) StartControllers() error {
	path, err := tb.Cluster.ControllersKubeconfig()
	if err != nil {
		return err
	}
	clients, err := kubeconfig.Load(path)
	if err != nil {
		return err
	}
	c, err := controllers.New(controllers.Config{MacRack: clients.MacRack, Core: clients.Kube, Clock: tb.Clock})
	if err != nil {
		return err
	}
	tb.stopControllers = tb.run("macrack-controllers", func(ctx context.Context) error { return c.Run(ctx, controllers.Alone) })
	return nil
}

// StopControllers stops the controllers, and waits for their end.
func (tb *Testbed) StopControllers() { tb.stopControllers() }

// MacName returns the name of the nth Mac; the first is number 1.
func MacName(n int) string { return fmt.Sprintf("mac-%d", n) }

// SerialNumber returns the serial number of the nth Mac.
func SerialNumber(n int) string { return fmt.Sprintf("SIM%07d", n) }

// startMac starts the agent of the nth Mac, as the node of that name.
func (tb *Testbed) startMac(ctx context.Context, n int) error {
	name := MacName(n)
	path, err := tb.Cluster.Kubeconfig("system:node:" + name)
	if err != nil {
		return err
	}
	clients, err := kubeconfig.Load(path)
	if err != nil {
		return err
	}
	if n > exampleMacs {
		if err := tb.rack(ctx, n); err != nil {
			return err
		}
	}
	dir := filepath.Join(tb.Cluster.Dir(), "macs", name)
	state, hostDir := filepath.Join(dir, "state"), sim.HostDir(filepath.Join(dir, "host"))
	if err := errors.Join(os.MkdirAll(state, 0o700), hostDir.Init(SerialNumber(n), string(uuid.NewUUID()))); err != nil {
		return err
	}
	ca := filepath.Join(dir, "cluster-ca.crt")
	if err := os.WriteFile(ca, clients.Config.CAData, 0o644); err != nil {
		return err
	}
	listener, err := process.Listen(0)
	if err != nil {
		return err
	}
	// Only the time rules follow the adjustable clock. Simulated guests boot and end in real time.
	backend := &sim.Backend{Host: hostDir, Clock: clock.RealClock{}}
	if tb.guestAgent {
		backend.GuestAgent = []string{filepath.Join(tb.Cluster.Bin(), build.Programs["guest-agent"])}
	}
	runners := &slots.InProcess{Backend: backend, Clock: clock.RealClock{}}
	agentConfig := agent.Config{
		NodeName:     name,
		Kube:         clients.Kube,
		Macrack:      clients.MacRack,
		StateDir:     state,
		Host:         &host.Simulated{Dir: hostDir, StateDir: state},
		Launcher:     runners,
		NewMachineID: func(context.Context) (string, error) { return sim.NewMachineID(), nil },
		Images:       &images.Simulated{Dir: filepath.Join(dir, "images"), Clock: tb.Clock},
		Clock:        tb.Clock,
		Version:      "v0.0.0-testbed",
		Address:      "127.0.0.1",
		Listener:     listener,
		ClientCAFile: ca,
	}
	tb.run("agent of "+name, func(ctx context.Context) (err error) {
		// kube-apiserver does not trust an agent with a self-signed serving certificate.
		if agentConfig.ServingCertificate, err = credentials.Serving(ctx, clients.Kube, name, agentConfig.Address, filepath.Join(state, "pki")); err != nil {
			return err
		}
		a, err := agent.New(agentConfig)
		if err != nil {
			return err
		}
		return a.Run(ctx)
	})
	return nil
}

// rack registers a Mac that is not in the example.
func (tb *Testbed) rack(ctx context.Context, n int) error {
	admin, err := tb.Clientset(cluster.Admin)
	if err != nil {
		return err
	}
	_, err = admin.RackV1alpha1().MacNodes().Create(ctx, &rackv1alpha1.MacNode{
		ObjectMeta: metav1.ObjectMeta{Name: MacName(n)},
		Spec:       rackv1alpha1.MacNodeSpec{SerialNumber: SerialNumber(n), ClassName: "base"},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// waitForMacs waits until all Macs and all images are usable.
func (tb *Testbed) waitForMacs(ctx context.Context, macs int) error {
	admin, err := tb.Clientset(cluster.Admin)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("waited %s", startTimeout))
	defer cancel()
	var missing string
	err = await.Poll(ctx, func(ctx context.Context) (bool, error) {
		if err := tb.Err(); err != nil {
			return false, err
		}
		missing = ""
		nodes, err := admin.RackV1alpha1().MacNodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			missing = err.Error()
			return false, nil
		}
		phases := map[string]rackv1alpha1.MacNodePhase{}
		for _, node := range nodes.Items {
			phases[node.Name] = node.Status.Phase
		}
		for n := 1; n <= macs; n++ {
			switch phase := phases[MacName(n)]; phase {
			case "", rackv1alpha1.MacNodePending, rackv1alpha1.MacNodeOffline:
				missing += fmt.Sprintf("%s is %q; ", MacName(n), phase)
			}
		}
		images, err := admin.ImageV1alpha1().MacOSImages().List(ctx, metav1.ListOptions{})
		if err != nil {
			missing += err.Error()
			return false, nil
		}
		for _, image := range images.Items {
			if image.Status.Phase != "Ready" {
				missing += fmt.Sprintf("image %s is %s; ", image.Name, image.Status.Phase)
			}
		}
		return missing == "", nil
	})
	if err != nil {
		return fmt.Errorf("not all Macs and images are ready: %w: %s(see %s)", err, missing, tb.Log)
	}
	return nil
}
