package race

import (
	"context"
	"math/rand/v2"
	"time"
)

// turnClock repeatedly moves the clock to just before the floor of a lease, or to hours before it,
// and sometimes back a little.
func (r *race) turnClock(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200*time.Millisecond + rand.N(200*time.Millisecond)):
		}
		if rand.IntN(40) == 0 {
			if err := r.clock.move(-rand.N(10 * time.Second)); err != nil {
				return err
			}
			continue
		}
		w := worker{race: r}
		for range 4 {
			v := w.target().view()
			if !held(v) && (!bound(v) || rand.IntN(20) > 0) {
				continue
			}
			by := v.lease.Status.EarliestReleaseAt.Sub(r.clock.Now()) - 20*time.Millisecond
			if rand.IntN(4) == 0 {
				by -= rand.N(20 * time.Hour)
			}
			if by > 0 {
				if err := r.clock.move(by); err != nil {
					return err
				}
				break
			}
		}
	}
}

// killAll repeatedly kills and restarts a server or a member of etcd.
func (r *race) killAll(ctx context.Context) error {
	if r.KillEvery == 0 {
		return nil
	}
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(r.KillEvery/2 + rand.N(r.KillEvery)):
		}
		var err error
		r.kills.Add(1)
		if n%2 == 0 {
			i := rand.IntN(len(r.servers))
			r.servers[i].Kill()
			r.down[i].Store(true)
			err = r.revive(ctx, r.servers[i], r.servers[i].ready)
			r.down[i].Store(false)
		} else {
			p := pick(r.members)
			p.Kill()
			err = r.revive(ctx, p, p.healthy)
		}
		if err != nil {
			return err
		}
	}
}

// revive restarts a process, even if another program has its port for a while.
func (r *race) revive(ctx context.Context, p *child, check func(context.Context) error) error {
	time.Sleep(rand.N(500 * time.Millisecond))
	ctx = context.WithoutCancel(ctx)
	for try := 0; ; try++ {
		if err := p.Start(); err != nil {
			return err
		}
		err := p.WaitReady(ctx, check)
		if err == nil || try == 5 || !p.Crashed() {
			return err
		}
		p.Kill()
		time.Sleep(time.Second)
	}
}
