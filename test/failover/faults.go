package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"time"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/await"
)

// A fault is one of the control plane. goal is the longest acceptable outage; planned means that no
// request may fail.
type fault struct {
	name    string
	goal    time.Duration
	planned bool
	measure func(ctx context.Context, p *prober, try int) (outage, error)
}

const (
	// down is how long a component is down, hang how long one hangs, and vanished how long a node
	// is gone.
	down     = 3 * time.Second
	hang     = 10 * time.Second
	vanished = 20 * time.Second
)

func faults(c *cluster.Cluster) []fault {
	apiserver := func(try int) string { return fmt.Sprintf("macrack-apiserver-%d", try%replicas+1) }
	etcd := func(try int) string { return fmt.Sprintf("macrack-etcd-%d", try%members+1) }
	kill := func(name func(int) string) func(context.Context, *prober, int) (outage, error) {
		return func(ctx context.Context, p *prober, try int) (outage, error) {
			return p.probe(ctx, func(ctx context.Context) error {
				return errors.Join(c.Kill(ctx, name(try)), await.Sleep(ctx, down), c.Restart(ctx, name(try)))
			})
		}
	}
	return []fault{
		{"macrack-apiserver: killed", time.Second, false, kill(apiserver)},
		{"macrack-apiserver: hangs", time.Second, false, func(ctx context.Context, p *prober, try int) (outage, error) {
			return p.probe(ctx, func(ctx context.Context) error {
				return errors.Join(c.Signal(apiserver(try), syscall.SIGSTOP), await.Sleep(ctx, hang), c.Signal(apiserver(try), syscall.SIGCONT))
			})
		}},
		{"macrack-apiserver: restarted", time.Second, true, func(ctx context.Context, p *prober, try int) (outage, error) {
			return p.probe(ctx, func(ctx context.Context) error { return c.Restart(ctx, apiserver(try)) })
		}},
		{"etcd member: killed", 2 * time.Second, false, kill(etcd)},
		{"controllers: leader killed", 15 * time.Second, false, func(ctx context.Context, p *prober, try int) (outage, error) {
			leader, err := leader(ctx, c)
			if err != nil {
				return outage{}, err
			}
			if err := c.Kill(ctx, leader); err != nil {
				return outage{}, err
			}
			took, err := p.noticed(ctx, fmt.Sprintf("noticed-%d", try))
			return outage{lasted: took}, errors.Join(err, c.Restart(ctx, leader))
		}},
		{"node vanishes: requests", 2 * time.Second, false, func(ctx context.Context, p *prober, try int) (outage, error) {
			n, err := nodeOf(ctx, c, apiserver(try), etcd(try))
			if err != nil {
				return outage{}, err
			}
			o, err := p.probe(ctx, func(ctx context.Context) error {
				return n.while(ctx, func(ctx context.Context) error { return await.Sleep(ctx, vanished) })
			})
			return o, errors.Join(err, n.restartControllers(ctx))
		}},
		{"node vanishes: controllers", 15 * time.Second, false, func(ctx context.Context, p *prober, try int) (outage, error) {
			n, err := nodeOf(ctx, c, apiserver(try), etcd(try))
			if err != nil {
				return outage{}, err
			}
			var took time.Duration
			err = n.while(ctx, func(ctx context.Context) (err error) {
				took, err = p.noticed(ctx, fmt.Sprintf("noticed-without-node-%d", try))
				return err
			})
			return outage{lasted: took}, errors.Join(err, n.restartControllers(ctx))
		}},
	}
}

// leader returns the name of the controllers that lead.
func leader(ctx context.Context, c *cluster.Cluster) (name string, err error) {
	err = await.Success(ctx, time.Minute, 100*time.Millisecond, func() error {
		for n := range replicas {
			name = fmt.Sprintf("macrack-controllers-%d", n+1)
			if leads, err := leads(ctx, c.Port(name)); err != nil || leads {
				return err
			}
		}
		return errors.New("none of the controllers leads")
	})
	return name, err
}

// leads reports whether the metrics at port are those of a leader.
func leads(ctx context.Context, port int) (bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/metrics", port), nil)
	if err != nil {
		return false, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "leader_election_master_status{") {
			return strings.HasSuffix(lines.Text(), " 1"), nil
		}
	}
	return false, lines.Err()
}
