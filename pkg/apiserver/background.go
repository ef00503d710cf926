package apiserver

import (
	"context"
	"sync"
	"time"

	genericapiserver "k8s.io/apiserver/pkg/server"

	"macrack.io/macrack/pkg/registry/tenancy"
)

// A background runs functions while the server serves.
type background struct {
	server *genericapiserver.GenericAPIServer
	// delayed returns after the shutdown delay, during which the server still serves.
	delayed func()
}

func newBackground(server *genericapiserver.GenericAPIServer) *background {
	return &background{server, sync.OnceFunc(func() { time.Sleep(server.ShutdownDelayDuration) })}
}

// whileServing runs run from the start of the server until its shutdown, which waits for run to
// return.
func (b *background) whileServing(name string, run func(context.Context)) error {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if err := b.server.AddPostStartHook(name, func(genericapiserver.PostStartHookContext) error {
		running.Go(func() { run(ctx) })
		return nil
	}); err != nil {
		stop()
		return err
	}
	return b.server.AddPreShutdownHook(name, func() error {
		b.delayed()
		stop()
		running.Wait()
		return nil
	})
}

// backfill delays readiness until the server has tried to set the owners of objects stored by
// earlier versions. Until then, tenants cannot see their own objects, and refusals for that reason
// would be recorded.
func (b *background) backfill(owners tenancy.Backfill) error {
	const name = "macrack-backfill-namespaces"
	if err := b.server.AddPostStartHook(name+"-once", func(hook genericapiserver.PostStartHookContext) error {
		owners.Once(hook.Context)
		return nil
	}); err != nil {
		return err
	}
	return b.whileServing(name, owners.Run)
}

// awaitFleet delays readiness until the server has joined the fleet of servers, and has noticed
// whether etcd may have been restored from a backup.
func (b *background) awaitFleet(joined <-chan struct{}) error {
	return b.server.AddPostStartHook("macrack-join-fleet", func(hook genericapiserver.PostStartHookContext) error {
		select {
		case <-joined:
		case <-hook.Done():
		}
		return nil
	})
}
