package apiserver

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/config"
	configv1alpha1 "macrack.io/macrack/pkg/apis/config/v1alpha1"
	"macrack.io/macrack/pkg/apis/rack"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/fleetclock"
	"macrack.io/macrack/pkg/registry/genericstore"
	"macrack.io/macrack/pkg/registry/rack/auditrecord"
	"macrack.io/macrack/pkg/registry/rack/macnode"
	"macrack.io/macrack/pkg/registry/requestuser"
	"macrack.io/macrack/pkg/registry/restore"
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
	// Namespaces returns the UIDs of namespaces; nil for those of the cluster.
	Namespaces tenancy.Namespaces

	// UserQPS and UserBurst limit the requests of each user; 0 is no limit.
	UserQPS   float64
	UserBurst int
}

// Server is the API server.
type Server struct {
	Generic *genericapiserver.GenericAPIServer
}

// writeLimit exceeds the rate at which a person or a pipeline changes one object. It does not apply
// to agents and controllers.
var writeLimit = txn.WriteLimit{
	Rate: 5, Burst: 5, Subject: requestuser.Subject,
	Exempt: func(u user.Info) bool {
		return componentOf(u) != nil || slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
	},
}

// New returns a server that can be prepared and run.
func (c *Config) New() (*Server, error) {
	c.limitRates()
	c.limitWatches()
	c.boundPatches()
	c.assignRequestIDs()
	namespaces, err := c.namespaces()
	if err != nil {
		return nil, err
	}
	fleet, ownership := fleetclock.New(c.Clock), tenancy.NewOwnership(namespaces)
	backend := txn.NewBackend(c.Generic.RESTOptionsGetter, planners(c.Clock, fleet, ownership),
		txn.WithoutWatchCache(auditrecord.Resource), txn.WithCodec(values.NewCodec), txn.WithWriteLimit(writeLimit))
	c.Generic.RESTOptionsGetter = backend
	c.Generic.AddReadyzChecks(writable(backend, c.Clock), knowsFrontProxy(c.Generic.Authentication.RequestHeaderConfig))

	rejections := ledger.NewRejections(c.Clock, func(ctx context.Context, record *rack.AuditRecord) error {
		plan := ledger.AppendOnce(c.Clock, record)
		return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error {
			if err := plan(ctx, tx); err != nil {
				return err
			}
			return macnode.ShowHead(ctx, tx, record)
		})
	})
	c.Generic.Authorization.Authorizer = componentAuthorizer{c.Generic.Authorization.Authorizer}
	filter := tenancy.NewFilter(namespaces, backend.Key, c.Generic.Authorization.Authorizer)
	storage, err := newStorage(genericstore.Options{Typer: Scheme, Backend: backend, Clock: c.Clock, Recorder: rejections}, filter,
		&restore.Restorer{Backend: backend, Clock: c.Clock, Fleet: fleet, Ownership: ownership})
	if err != nil {
		return nil, err
	}
	if err := c.restrict(backend, storage.rack.MacNodes.MacNode, storage.instance.MacOSInstances.MacOSInstance); err != nil {
		return nil, err
	}
	generic, err := c.Generic.Complete().New("macrack-apiserver", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, err
	}
	if err := generic.InstallAPIGroups(storage.groups()...); err != nil {
		return nil, err
	}
	background := newBackground(generic)
	if err := background.backfill(tenancy.Backfill{Backend: backend}); err != nil {
		return nil, err
	}
	if err := c.applyFlowControl(background); err != nil {
		return nil, err
	}
	fleetTransact := func(ctx context.Context, plan func(context.Context, fleetclock.Tx) error) error {
		return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return plan(ctx, tx) })
	}
	restored := func(ctx context.Context) error { return macnode.Unconfirm(ctx, backend, c.Clock) }
	if err := background.awaitFleet(fleet.Joined()); err != nil {
		return nil, err
	}
	for name, run := range map[string]func(context.Context){
		"macrack-fold-rejections": rejections.Run,
		"macrack-expire-records":  c.expirer(backend, fleet, storage.config.RackConfigs.RackConfig).Run,
		"macrack-verdict-metrics": storage.rack.ComplianceReports.Run,
		"macrack-fleet-clock":     func(ctx context.Context) { fleet.Run(ctx, fleetTransact, restored) },
	} {
		if err := background.whileServing(name, run); err != nil {
			return nil, err
		}
	}
	return &Server{generic}, nil
}

// expirer returns the expirer of records.
func (c *Config) expirer(backend *txn.Backend, fleet *fleetclock.Clock, rackConfigs rest.Getter) *ledger.Expirer {
	return &ledger.Expirer{
		Clock: c.Clock,
		Earliest: func(ctx context.Context, tx ledger.Tx, now time.Time) (time.Time, error) {
			return fleet.Earliest(ctx, tx, now)
		},
		Retention: func(ctx context.Context) (time.Duration, error) { return retention(ctx, rackConfigs) },
		Records:   auditrecord.Source(backend),
		Anchors:   auditrecord.Anchors(backend),
		Transact: func(ctx context.Context, plan func(context.Context, ledger.ExpiryTx) error) error {
			return backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return plan(ctx, tx) })
		},
	}
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
