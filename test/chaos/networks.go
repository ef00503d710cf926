package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/vm/contract"
)

const (
	// openConnections is the number of connections to a guest while processes are killed.
	openConnections = 20
	// echoPort is a port of simulated guests that greets and then returns what it receives.
	echoPort = 22
)

// networks ends processes while connections to isolated guests are open, and checks that the
// connections end with their VM and only with it, and that the network of the next VM works.
func networks(ctx context.Context, r *run) error {
	if err := r.clear(ctx); err != nil {
		return err
	}
	before, err := r.mac.agentUsage(ctx)
	if err != nil {
		return err
	}
	for _, mode := range []string{endAgent, endRunner, endBoth, endPower, "stop"} {
		for range 1 + r.RunnerKills/10 {
			r.fault(mode+" with open connections to an isolated guest", func() error { return r.connected(ctx, mode) })
			if !r.mac.agent.Running() {
				if err := r.mac.agent.Start(); err != nil {
					return err
				}
			}
			if err := r.clear(ctx); err != nil {
				return err
			}
		}
	}
	r.fault("usage after connections to isolated guests", func() error {
		after, err := r.mac.agentUsage(ctx)
		return errors.Join(err, grown(before, after))
	})
	return nil
}

// connected ends processes in one way while connections are open.
func (r *run) connected(ctx context.Context, mode string) error {
	i, err := r.start(ctx)
	if err != nil {
		return err
	}
	conns, err := r.connect(ctx, i.Name)
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	if err != nil {
		return err
	}
	pids := r.pids(ctx)
	if mode == "stop" {
		err = r.admin.InstanceV1alpha1().MacOSInstances(tenant).Delete(ctx, i.Name, metav1.DeleteOptions{})
	} else {
		err = r.end(pids[i.Name], mode)
	}
	if err != nil {
		return err
	}
	if mode == endAgent { // the VM runs on
		for n, conn := range conns {
			if err := echo(conn); err != nil {
				return fmt.Errorf("connection %d of %d ended with the agent: %w", n, len(conns), err)
			}
		}
		return errors.Join(r.mac.agent.Start(), r.settle(ctx), r.same(ctx, pids))
	}
	for n, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, conn); isTimeout(err) {
			return fmt.Errorf("connection %d of %d has not ended with its VM", n, len(conns))
		}
	}
	if !r.mac.agent.Running() {
		if err := r.mac.agent.Start(); err != nil {
			return err
		}
	}
	if err := r.clear(ctx); err != nil {
		return err
	}
	next, err := r.start(ctx)
	if err != nil {
		return err
	}
	again, err := r.connect(ctx, next.Name)
	for _, conn := range again {
		_ = conn.Close()
	}
	return errors.Join(err, r.settle(ctx))
}

// connect opens connections to a guest through its runner, once the guest has its address.
func (r *run) connect(ctx context.Context, name string) (conns []net.Conn, err error) {
	for range openConnections {
		if err := wait(ctx, func() error {
			conn, err := r.dial(ctx, name)
			if err == nil {
				conns = append(conns, conn)
			}
			return err
		}); err != nil {
			return conns, err
		}
	}
	return conns, nil
}

func (r *run) dial(ctx context.Context, name string) (net.Conn, error) {
	for _, v := range r.mac.vms(ctx) {
		if v.Name != name {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, answerTimeout)
		defer cancel()
		conn, err := contract.NewClient(r.mac.slot(v.slot)).Dial(ctx, echoPort)
		if err != nil {
			return nil, err
		}
		if err := echo(conn); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return conn, nil
	}
	return nil, fmt.Errorf("no runner of %s answers", name)
}

// echo sends a byte to the guest and waits for its return, also behind the greeting.
func echo(conn net.Conn) error {
	const sent = '\x01'
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	defer func() { _ = conn.SetDeadline(time.Time{}) }()
	if _, err := conn.Write([]byte{sent}); err != nil {
		return err
	}
	for received := []byte{0}; received[0] != sent; {
		if _, err := io.ReadFull(conn, received); err != nil {
			return err
		}
	}
	return nil
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
