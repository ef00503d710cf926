package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/term"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/plugin/cmdutil"
	"macrack.io/macrack/pkg/plugin/guest"
	"macrack.io/macrack/pkg/plugin/terminal"
)

const (
	namePrefix = "run-"
	// cleanupTimeout bounds the requests after the command.
	cleanupTimeout = 30 * time.Second
	// keepEnded is the time in seconds for which an ended instance is kept, so that its failure can
	// be read.
	keepEnded = int32(300)
)

// A runner runs one command.
type runner struct {
	env     *cmdutil.Env
	clients *cmdutil.Clients
	access  guest.Access
	options Options
	// cleanup are the steps after the command, in the order of their creation.
	cleanup []func(context.Context) error
}

func (r *runner) onExit(step func(context.Context) error) { r.cleanup = append(r.cleanup, step) }

// progress prints a line about the progress for the user.
func (r *runner) progress(format string, args ...any) {
	fmt.Fprintln(r.env.ErrOut, terminal.Clean(fmt.Sprintf(format, args...)))
}

// run runs the command and cleans up, also after an interrupt.
func (r *runner) run(ctx context.Context) (err error) {
	streams, err := r.streams()
	if err != nil {
		return err
	}
	defer func() {
		err = cmdutil.Interrupted(ctx, err)
		if failed := r.clean(context.WithoutCancel(ctx)); failed != nil && err != nil {
			r.progress("Error: %v", failed)
		} else if failed != nil {
			err = failed
		}
	}()
	lease, err := r.chooseLease(ctx)
	if err != nil {
		return err
	}
	r.progress("Using lease %s", lease)
	pod, err := r.start(ctx, lease)
	if err != nil {
		return err
	}
	err = r.access.Exec(ctx, pod, r.options.Command, streams)
	if code, failed := guest.ExitCode(err); failed && ctx.Err() == nil {
		return &cmdutil.ExitError{Code: code}
	}
	return err
}

// streams returns the streams of the command. A terminal needs a user's terminal.
func (r *runner) streams() (guest.Streams, error) {
	s := guest.Streams{Out: r.env.Out, Err: r.env.ErrOut}
	if r.options.Stdin {
		s.In = r.env.In
	}
	if !r.options.TTY {
		return s, nil
	}
	in, ok := r.env.In.(*os.File)
	if !ok || !r.options.Stdin || !term.IsTerminal(int(in.Fd())) {
		return s, errors.New("--tty needs --stdin and a terminal as standard input")
	}
	s.Terminal = in
	return s, nil
}

// clean undoes what the run has made, the last step first.
func (r *runner) clean(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	var errs []error
	for _, step := range slices.Backward(r.cleanup) {
		errs = append(errs, step(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("failed to clean up: %w", err)
	}
	return nil
}

// start creates an instance on a lease, and returns its pod when it is ready.
func (r *runner) start(ctx context.Context, lease string) (guest.Pod, error) {
	client := r.clients.MacRack.InstanceV1alpha1().MacOSInstances(r.clients.Namespace)
	// An interrupted request could create an instance that is never deleted.
	i, err := client.Create(context.WithoutCancel(ctx), &instancev1alpha1.MacOSInstance{
		ObjectMeta: metav1.ObjectMeta{GenerateName: namePrefix},
		Spec: instancev1alpha1.MacOSInstanceSpec{
			LeaseName: lease, ClassName: r.options.Class, ImageName: r.options.Image,
			// A plugin that is killed deletes nothing.
			ActiveDeadlineSeconds: ptr.To(int64(r.options.Deadline.Seconds())), TTLSecondsAfterFinished: ptr.To(keepEnded),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return guest.Pod{}, fmt.Errorf("failed to create an instance: %w", err)
	}
	r.onExit(func(ctx context.Context) error {
		err := client.Delete(ctx, i.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &i.UID}})
		if err == nil {
			r.progress("Instance %s deleted", i.Name)
		}
		return ignoreNotFound(err)
	})
	r.progress("Instance %s created", i.Name)
	return r.waitForInstance(ctx, i)
}
