package fakes

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/generated/clientset/versioned"
)

// Macs binds each lease, and runs the startup script of each instance as a process of this host,
// with a home directory of its own.
type Macs struct {
	client    versioned.Interface
	namespace string
	dir       string

	mu     sync.Mutex
	guests map[types.UID]*exec.Cmd
}

// NewMacs returns the Macs of a namespace. Home directories are in dir.
func NewMacs(client versioned.Interface, namespace, dir string) *Macs {
	return &Macs{client: client, namespace: namespace, dir: dir, guests: map[types.UID]*exec.Cmd{}}
}

// Run runs the Macs until ctx ends.
func (m *Macs) Run(ctx context.Context) {
	for ctx.Err() == nil {
		m.bind(ctx)
		m.boot(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, cmd := range m.guests {
		kill(cmd)
	}
}

func (m *Macs) bind(ctx context.Context) {
	leases, err := m.client.RackV1alpha1().MacNodeLeases(m.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range leases.Items {
		lease := &leases.Items[i]
		if lease.Status.BoundAt != nil {
			continue
		}
		now := metav1.Now()
		floor := metav1.NewTime(now.Add(24 * time.Hour))
		lease.Status.Phase, lease.Status.BoundAt, lease.Status.EarliestReleaseAt = rackv1alpha1.MacNodeLeaseBound, &now, &floor
		_, _ = m.client.RackV1alpha1().MacNodeLeases(m.namespace).Update(ctx, lease, metav1.UpdateOptions{})
	}
}

func (m *Macs) boot(ctx context.Context) {
	instances, err := m.client.InstanceV1alpha1().MacOSInstances(m.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	found := map[types.UID]bool{}
	for i := range instances.Items {
		instance := &instances.Items[i]
		found[instance.UID] = true
		if m.guests[instance.UID] == nil {
			m.guests[instance.UID] = m.start(ctx, instance)
		}
	}
	for uid, cmd := range m.guests {
		if !found[uid] {
			kill(cmd)
			delete(m.guests, uid)
			_ = os.RemoveAll(m.Home(uid))
		}
	}
}

// Home returns the home directory of an instance.
func (m *Macs) Home(uid types.UID) string { return filepath.Join(m.dir, string(uid)) }

func (m *Macs) start(ctx context.Context, instance *instancev1alpha1.MacOSInstance) *exec.Cmd {
	home := m.Home(instance.UID)
	_ = os.MkdirAll(home, 0o700)
	cmd := exec.Command("/bin/sh", "-c", instance.Spec.StartupScript)
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if instance.Spec.StartupScript != "" {
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		go func() {
			_ = cmd.Wait()
			m.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
				s.Startup = &instancev1alpha1.StartupResult{ExitCode: int32(cmd.ProcessState.ExitCode())}
			})
		}()
	}
	m.update(ctx, instance, func(s *instancev1alpha1.MacOSInstanceStatus) {
		s.Phase, s.PodName = instancev1alpha1.MacOSInstanceRunning, instance.Name+"-vm"
		s.Conditions = []metav1.Condition{{Type: instancev1alpha1.MacOSInstanceGuestReady, Status: metav1.ConditionTrue}}
	})
	return cmd
}

func (m *Macs) update(ctx context.Context, instance *instancev1alpha1.MacOSInstance, change func(*instancev1alpha1.MacOSInstanceStatus)) {
	instances := m.client.InstanceV1alpha1().MacOSInstances(m.namespace)
	_ = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		fresh, err := instances.Get(ctx, instance.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&fresh.Status)
		_, err = instances.Update(ctx, fresh, metav1.UpdateOptions{})
		return err
	})
}

// KillGuest kills the startup script of an instance, and what it has started.
func (m *Macs) KillGuest(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cmd := m.guests[uid]; cmd != nil {
		kill(cmd)
	}
}

func kill(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
}

// Execute implements guest.Executor, on this host.
func (m *Macs) Execute(ctx context.Context, instance *instancev1alpha1.MacOSInstance, stdin io.Reader, stdout, stderr io.Writer, command ...string) (int, error) {
	home := m.Home(instance.UID)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = home, []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return exit.ExitCode(), nil
	}
	return 0, err
}
