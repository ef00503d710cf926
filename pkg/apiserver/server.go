package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/config"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/apis/image"
	"macrack.io/macrack/pkg/apis/instance"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/config/rackconfig"
	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/image/macosimage"
	"macrack.io/macrack/pkg/registry/instance/instanceclass"
	"macrack.io/macrack/pkg/registry/instance/macosinstance"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/rack/compliancereport"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/rack/macnodeclass"
	"macrack.io/macrack/pkg/registry/rack/macnodelease"
	"macrack.io/macrack/pkg/registry/rejection"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/tenancy"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/registry/values"
	"macrack.io/macrack/pkg/rules"
)

// Config is the configuration of a server.
type Config struct {
	Generic *genericapiserver.RecommendedConfig
	// Clock is the clock of the rules about time.
	Clock clock.WithTicker
	// Namespaces looks up namespaces; nil for those of the cluster.
	Namespaces tenancy.Namespaces
}

// Server is the API server.
type Server struct {
	Generic *genericapiserver.GenericAPIServer
}

// writeLimit exceeds the rate at which a person or a pipeline changes one object. It does not apply
// to agents and controllers.
var writeLimit = txn.WriteLimit{
	Rate: 5, Burst: 5,
	Exempt: func(u user.Info) bool {
		_, isAgent := requestuser.AgentOf(u)
		return isAgent || u.GetName() == requestuser.Controllers || slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
	},
}

// New returns a server that can be prepared and run.
func (c *Config) New() (*Server, error) {
	fleet := fleetclock.New(c.Clock)
	planners := Planners(c.Clock, fleet)
	c.boundPatches()
	c.nameRequests()
	lives, err := c.lives()
	if err != nil {
		return nil, err
	}
	var own rejection.Filter
	if lives != nil {
		own = lives.Own
		planners[macnodelease.Resource] = lives.Leases(c.Clock, planners[macnodelease.Resource])
		planners[macosinstance.Resource] = lives.Instances(planners[macosinstance.Resource])
	}
	backend := txn.NewBackend(c.Generic.RESTOptionsGetter, planners, txn.WithoutWatchCache(auditrecord.Resource), txn.WithCodec(values.NewCodec), txn.WithWriteLimit(writeLimit))
	c.Generic.RESTOptionsGetter = backend
	c.Generic.AddReadyzChecks(writable(backend, c.Clock), knowsFrontProxy(c.Generic.Authentication.RequestHeaderConfig))

	rejections := ledger.NewRejections(c.Clock, func(ctx context.Context, record *rack.AuditRecord) error {
		plan := ledger.AppendOnce(c.Clock, record)
		return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return plan(ctx, tx) })
	})
	groups, expirer, err := c.groups(backend, fleet, rejections, own)
	if err != nil {
		return nil, err
	}
	if err := c.restrict(backend, groups); err != nil {
		return nil, err
	}
	if lives != nil {
		lives.Key = backend.Key
		limitRecords(groups, lives.Visible)
	}
	generic, err := c.Generic.Complete().New("macrack-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	if err := generic.InstallAPIGroups(groups...); err != nil {
		return nil, err
	}
	if err := whileServing(generic, "macrack-fold-rejections", rejections.Run); err != nil {
		return nil, err
	}
	if err := whileServing(generic, "macrack-expire-records", expirer.Run); err != nil {
		return nil, err
	}
	if lives != nil {
		if err := backfill(generic, tenancy.Backfill{Backend: backend}); err != nil {
			return nil, err
		}
	}
	return &Server{generic}, whileServing(generic, "macrack-fleet-clock", func(ctx context.Context) {
		fleet.Run(ctx, func(ctx context.Context, plan func(context.Context, fleetclock.Tx) error) error {
			return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return plan(ctx, tx) })
		})
	})
}

// Planners returns the rules that span objects, for the resources that have any.
func Planners(clock clock.PassiveClock, fleet *fleetclock.Clock) map[schema.GroupResource]txn.Planner {
	return map[schema.GroupResource]txn.Planner{
		macnode.Resource:       macnode.NewPlanner(clock),
		macnodelease.Resource:  macnodelease.NewPlanner(clock, fleet),
		macosinstance.Resource: macosinstance.NewPlanner(clock),
		macosimage.Resource:    macosimage.NewPlanner(clock),
	}
}

// groups returns the API groups of the server, which serve leases and instances to their owners
// only, and the expirer of its records.
func (c *Config) groups(backend *txn.Backend, fleet *fleetclock.Clock, rejections *ledger.Rejections, own rejection.Filter) ([]*genericapiserver.APIGroupInfo, *ledger.Expirer, error) {
	rackConfigs, err := rackconfig.NewStorage(Scheme, backend, c.Clock, rejections)
	if err != nil {
		return nil, nil, err
	}
	instanceClasses, err := instanceclass.NewStorage(Scheme, backend, c.Clock, rejections)
	if err != nil {
		return nil, nil, err
	}
	images, imagesStatus, err := macosimage.NewStorage(Scheme, backend, c.Clock, rejections)
	if err != nil {
		return nil, nil, err
	}
	nodeClasses, nodeClassesStatus, err := macnodeclass.NewStorage(Scheme, backend, c.Clock, rejections)
	if err != nil {
		return nil, nil, err
	}
	nodes, nodesStatus, err := macnode.NewStorage(Scheme, backend, c.Clock, rejections)
	if err != nil {
		return nil, nil, err
	}
	defaultClass := func(ctx context.Context) string {
		obj, err := rackConfigs.Get(genericapirequest.WithNamespace(ctx, ""), configv1alpha1.RackConfigName, &metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return "" // the lease is refused because it has no class
		}
		return obj.(*config.RackConfig).Spec.DefaultClassName
	}
	leases, err := macnodelease.NewStorage(Scheme, backend, c.Clock, rejections, defaultClass, own)
	if err != nil {
		return nil, nil, err
	}
	instances, instancesStatus, err := macosinstance.NewStorage(Scheme, backend, c.Clock, rejections, own, leases.Lease, nodes)
	if err != nil {
		return nil, nil, err
	}
	nodeClasses.WarnOnDelete, instanceClasses.WarnOnDelete = macnodeclass.WarnOnDelete(nodes), instanceclass.WarnOnDelete(instances)
	records, err := auditrecord.NewStorage(Scheme, backend, c.Clock, rejections)
	if err != nil {
		return nil, nil, err
	}
	expirer := &ledger.Expirer{
		Clock: c.Clock,
		Earliest: func(ctx context.Context, tx ledger.Tx, now time.Time) (time.Time, error) {
			return fleet.Earliest(ctx, tx, now)
		},
		Retention: func(ctx context.Context) (time.Duration, error) { return retention(ctx, rackConfigs) },
		Records:   auditrecord.Source(backend, anchors(backend)),
		Anchors:   anchors(backend),
		Transact: func(ctx context.Context, plan func(context.Context, ledger.ExpiryTx) error) error {
			return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return plan(ctx, tx) })
		},
	}
	return []*genericapiserver.APIGroupInfo{
		group(rack.GroupName, map[string]rest.Storage{
			"macnodeclasses":        nodeClasses,
			"macnodeclasses/status": nodeClassesStatus,
			"macnodes":              nodes,
			"macnodes/status":       nodesStatus,
			"macnodeleases":         leases.Lease,
			"macnodeleases/status":  leases.Status,
			"macnodeleases/binding": leases.Binding,
			"macnodeleases/release": leases.Release,
			"auditrecords":          records,
			"compliancereports":     compliancereport.NewREST(c.Clock, auditrecord.Source(backend, anchors(backend)), anchors(backend)),
		}),
		group(instance.GroupName, map[string]rest.Storage{
			"instanceclasses":       instanceClasses,
			"macosinstances":        instances,
			"macosinstances/status": instancesStatus,
			"macosinstances/stop":   macosinstance.NewStopREST(Scheme, instances.REST, backend, c.Clock),
		}),
		group(image.GroupName, map[string]rest.Storage{
			"macosimages":        images,
			"macosimages/status": imagesStatus,
		}),
		group(config.GroupName, map[string]rest.Storage{
			"rackconfigs": rackConfigs,
		}),
	}, expirer, nil
}

// retention returns the retention period of records: the configured one, or the default.
func retention(ctx context.Context, rackConfigs rest.Getter) (time.Duration, error) {
	obj, err := rackConfigs.Get(genericapirequest.WithNamespace(ctx, ""), configv1alpha1.RackConfigName, &metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return configv1alpha1.DefaultAuditRetention, nil
	}
	if err != nil {
		return 0, err
	}
	if configured := obj.(*config.RackConfig).Spec.Audit.Retention; configured != nil {
		return max(configured.Value(), rules.MinimumAuditRetention), nil
	}
	return configv1alpha1.DefaultAuditRetention, nil
}

// anchors returns the anchors of the chains of the ledger, which are stored under index keys.
func anchors(backend *txn.Backend) compliancereport.AnchorSource {
	return func(ctx context.Context) (ledger.Anchors, error) {
		heads, err := backend.Keys(ctx, ledger.HeadKind)
		if err != nil {
			return nil, err
		}
		checkpoints, err := backend.Keys(ctx, ledger.CheckpointKind)
		if err != nil {
			return nil, err
		}
		return ledger.NewAnchors(heads, checkpoints)
	}
}

func group(name string, storage map[string]rest.Storage) *genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(name, Scheme, metav1.ParameterCodec, Codecs)
	info.NegotiatedSerializer = boundedSerializer{info.NegotiatedSerializer}
	info.VersionedResourcesStorageMap["v1alpha1"] = storage
	return &info
}

// knowsFrontProxy returns a check that the CA of the front proxy has been read. Until then, users
// whose requests pass through kube-apiserver are treated as anonymous.
func knowsFrontProxy(config *authenticatorfactory.RequestHeaderConfig) healthz.HealthChecker {
	return healthz.NamedCheck("front-proxy-ca", func(*http.Request) error {
		if config != nil && config.CAContentProvider != nil && len(config.CAContentProvider.CurrentCABundleContent()) == 0 {
			return errors.New("the CA of the front proxy has not been read yet")
		}
		return nil
	})
}

// backfill delays readiness until the server has tried to set the owners of objects stored by
// earlier versions. Until then, tenants cannot see their own objects, and refusals for that reason
// would be recorded.
func backfill(server *genericapiserver.GenericAPIServer, b tenancy.Backfill) error {
	const name = "macrack-backfill-namespaces"
	if err := server.AddPostStartHook(name+"-once", func(hook genericapiserver.PostStartHookContext) error {
		b.Once(hook.Context)
		return nil
	}); err != nil {
		return err
	}
	return whileServing(server, name, b.Run)
}

// whileServing runs run from the start of the server until its shutdown, which waits for run to
// return.
func whileServing(server *genericapiserver.GenericAPIServer, name string, run func(context.Context)) error {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	if err := server.AddPostStartHook(name, func(genericapiserver.PostStartHookContext) error {
		running.Go(func() { run(ctx) })
		return nil
	}); err != nil {
		stop()
		return err
	}
	return server.AddPreShutdownHook(name, func() error {
		stop()
		running.Wait()
		return nil
	})
}
