package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/apis/instance"
	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	"macrack.io/macrack/pkg/apis/rack"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apiserver"
	"macrack.io/macrack/pkg/ledger"
	"macrack.io/macrack/pkg/registry/txn"
	"macrack.io/macrack/pkg/rules"
	"macrack.io/macrack/test/stats"
)

var (
	instanceResource = instance.Resource("macosinstances")
	leaseResource    = rack.Resource("macnodeleases")
	recordResource   = rack.Resource("auditrecords")
)

// registry has the stores of three kinds on macrack's etcd, in this process. Only transactions are
// compared, so the strategies do nothing.
type registry struct {
	instances, leases, records *genericregistry.Store
}

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (strategy) NamespaceScoped() bool                                            { return true }
func (strategy) PrepareForCreate(context.Context, runtime.Object)                 {}
func (strategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}
func (strategy) Validate(context.Context, runtime.Object) field.ErrorList         { return nil }
func (strategy) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (strategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (strategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (strategy) Canonicalize(runtime.Object)                   {}
func (strategy) AllowCreateOnUpdate(context.Context) bool      { return false }
func (strategy) AllowUnconditionalUpdate(context.Context) bool { return true }

type restOptions storagebackend.Config

func (c restOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.Config(c)
	return generic.RESTOptions{
		StorageConfig: config.ForResource(gr), Decorator: genericregistry.StorageWithCacher(),
		DeleteCollectionWorkers: 1, EnableGarbageCollection: true, ResourcePrefix: gr.Group + "/" + gr.Resource,
	}, nil
}

// newRegistry returns stores with a separate key prefix.
func (b *bench) newRegistry(ctx context.Context, prefix string, planners map[schema.GroupResource]txn.Planner) (*registry, error) {
	stored := schema.GroupVersions{rackv1alpha1.SchemeGroupVersion, instancev1alpha1.SchemeGroupVersion}
	codec := apiserver.Codecs.CodecForVersions(storageSerializer, storageSerializer, stored, runtime.InternalGroupVersioner)
	config := storagebackend.NewDefaultConfig("/bench/"+prefix, codec)
	access := b.cluster.MacrackEtcd()
	config.Transport.ServerList = access.Servers
	config.Transport.CertFile, config.Transport.KeyFile, config.Transport.TrustedCAFile = access.CertFile, access.KeyFile, access.CAFile
	config.CompactionInterval = 0
	backend := txn.NewBackend(restOptions(*config), planners, txn.WithoutWatchCache(recordResource))
	store := func(gr schema.GroupResource, singular string, newFunc, newList func() runtime.Object) (*genericregistry.Store, error) {
		s := strategy{apiserver.Scheme, names.SimpleNameGenerator}
		r := &genericregistry.Store{
			NewFunc: newFunc, NewListFunc: newList, DefaultQualifiedResource: gr,
			SingularQualifiedResource: schema.GroupResource{Group: gr.Group, Resource: singular},
			CreateStrategy:            s, UpdateStrategy: s, DeleteStrategy: s, TableConvertor: rest.NewDefaultTableConvertor(gr),
		}
		return r, r.CompleteWithOptions(&generic.StoreOptions{RESTOptions: backend})
	}
	r := &registry{}
	var err error
	if r.instances, err = store(instanceResource, "macosinstance", func() runtime.Object { return &instance.MacOSInstance{} }, func() runtime.Object { return &instance.MacOSInstanceList{} }); err != nil {
		return nil, err
	}
	if r.leases, err = store(leaseResource, "macnodelease", func() runtime.Object { return &rack.MacNodeLease{} }, func() runtime.Object { return &rack.MacNodeLeaseList{} }); err != nil {
		return nil, err
	}
	if r.records, err = store(recordResource, "auditrecord", func() runtime.Object { return &rack.AuditRecord{} }, func() runtime.Object { return &rack.AuditRecordList{} }); err != nil {
		return nil, err
	}
	for _, s := range []*genericregistry.Store{r.instances, r.leases, r.records} {
		for s.ReadinessCheck() != nil {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	return r, nil
}

func (r *registry) destroy() {
	for _, s := range []*genericregistry.Store{r.instances, r.leases, r.records} {
		s.Destroy()
	}
}

// planSlot takes or frees a slot of the lease, with a record.
func planSlot(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
	was, _ := old.(*instance.MacOSInstance)
	is, _ := new.(*instance.MacOSInstance)
	if was != nil && is != nil {
		return nil
	}
	subject, record := is, ledger.NewInstanceStarted
	if is == nil {
		subject, record = was, ledger.NewInstanceStopped
	}
	lease := &rack.MacNodeLease{}
	if err := tx.Get(ctx, leaseResource, subject.Namespace, subject.Spec.LeaseName, lease); err != nil {
		return err
	}
	if is != nil {
		var taken []string
		for _, slot := range lease.Status.Instances {
			taken = append(taken, slot.Name)
		}
		if err := rules.CheckSlot(lease.Name, taken); err != nil {
			return apierrors.NewForbidden(instanceResource, is.Name, err)
		}
		lease.Status.Instances = append(lease.Status.Instances, rack.LeaseSlot{Name: is.Name, UID: is.UID})
	} else {
		lease.Status.Instances = slices.DeleteFunc(lease.Status.Instances, func(s rack.LeaseSlot) bool { return s.UID == was.UID })
	}
	if err := tx.Update(ctx, leaseResource, lease); err != nil {
		return err
	}
	return ledger.Append(ctx, tx, clock.RealClock{}, record(subject, lease, int32(len(lease.Status.Instances))))
}

var planners = map[schema.GroupResource]txn.Planner{instanceResource: planSlot}

func requestContext(ctx context.Context) context.Context {
	return genericrequest.WithUser(genericrequest.WithNamespace(ctx, tenant), &user.DefaultInfo{Name: "alice"})
}

func create(ctx context.Context, s *genericregistry.Store, obj runtime.Object) error {
	_, err := s.Create(requestContext(ctx), obj, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	return err
}

func internalInstance(name, lease string) *instance.MacOSInstance {
	return &instance.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name}, Spec: instance.MacOSInstanceSpec{LeaseName: lease}}
}

func internalLease(name string) *rack.MacNodeLease {
	return &rack.MacNodeLease{ObjectMeta: metav1.ObjectMeta{Namespace: tenant, Name: name}, Status: rack.MacNodeLeaseStatus{NodeName: name, SerialNumber: name}}
}

// inTurn makes the writes of a planned create one after the other.
func (r *registry) inTurn(ctx context.Context, i *instance.MacOSInstance) error {
	lease := &rack.MacNodeLease{}
	_, _, err := r.leases.Update(requestContext(ctx), i.Spec.LeaseName, rest.DefaultUpdatedObjectInfo(nil, func(_ context.Context, _, old runtime.Object) (runtime.Object, error) {
		lease = old.DeepCopyObject().(*rack.MacNodeLease)
		lease.Status.Instances = append(lease.Status.Instances, rack.LeaseSlot{Name: i.Name, UID: uuid.NewUUID()})
		return lease, nil
	}), rest.ValidateAllObjectFunc, rest.ValidateAllObjectUpdateFunc, false, &metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	record := ledger.NewInstanceStarted(i, lease, 1)
	record.ObjectMeta = metav1.ObjectMeta{Namespace: tenant, Name: i.Name}
	record.Hash = ledger.Hash(record)
	if err := create(ctx, r.records, record); err != nil {
		return err
	}
	return create(ctx, r.instances, i)
}

// measurePlanned compares creating an instance in one transaction with its lease and its record,
// with a plain create, and with three writes.
func (b *bench) measurePlanned(ctx context.Context) error {
	plain, err := b.newRegistry(ctx, "plain", nil)
	if err != nil {
		return err
	}
	defer plain.destroy()
	planned, err := b.newRegistry(ctx, "planned", planners)
	if err != nil {
		return err
	}
	defer planned.destroy()
	const withPlan, alone, inTurn = 0, 1, 2
	variants := []struct {
		name   string
		on     *registry
		create func(*instance.MacOSInstance) error
	}{
		withPlan: {"planned", planned, func(i *instance.MacOSInstance) error { return create(ctx, planned.instances, i) }},
		alone:    {"plain", plain, func(i *instance.MacOSInstance) error { return create(ctx, plain.instances, i) }},
		inTurn:   {"in-turn", plain, func(i *instance.MacOSInstance) error { return plain.inTurn(ctx, i) }},
	}
	rounds := make([][inTurn + 1][]time.Duration, b.rounds)
	for n := range b.planned {
		took := &rounds[n*b.rounds/b.planned]
		for v := range variants {
			v = (v + n) % len(variants)
			name := fmt.Sprintf("%s-%d", variants[v].name, n)
			if err := create(ctx, variants[v].on.leases, internalLease(name)); err != nil {
				return err
			}
			if err := variants[v].create(internalInstance(name+"-first", name)); err != nil { // the lease and its chain are known
				return err
			}
			start := time.Now()
			if err := variants[v].create(internalInstance(name, name)); err != nil {
				return err
			}
			took[v] = append(took[v], time.Since(start))
		}
	}
	p50 := func(v int) (values []float64) {
		for _, took := range rounds {
			values = append(values, ms(stats.Median(took[v])))
		}
		return values
	}
	b.less("planned create (instance, lease and record), to a plain one, p50", "ms", p50(withPlan), p50(alone), 1.5)
	b.less("the same, to three consecutive writes, p50", "ms", p50(withPlan), p50(inTurn), 0.5)
	return b.measureRivals(ctx)
}

// measureRivals lets 64 clients of two servers create and delete instances of one lease with two
// slots, each as fast as it can.
func (b *bench) measureRivals(ctx context.Context) error {
	const clients, lease = 64, "contended"
	var servers [2]*registry
	for i := range servers {
		var err error
		if servers[i], err = b.newRegistry(ctx, "rivals", planners); err != nil {
			return err
		}
		defer servers[i].destroy()
	}
	if err := create(ctx, servers[0].leases, internalLease(lease)); err != nil {
		return err
	}
	var perCommit []float64
	for round := range b.rounds {
		before, err := conflicts()
		if err != nil {
			return err
		}
		commits, err := b.compete(ctx, servers, clients, lease, round)
		if err != nil {
			return err
		}
		after, err := conflicts()
		if err != nil {
			return err
		}
		perCommit = append(perCommit, (after-before)/float64(commits))
	}
	b.alone(fmt.Sprintf("%d competing clients for one lease on two servers", clients), "conflicts/commit", perCommit, 2)
	return nil
}

// compete runs a round of measureRivals and returns the number of commits.
func (b *bench) compete(ctx context.Context, servers [2]*registry, clients int, lease string, round int) (int64, error) {
	var commits atomic.Int64
	failed := make(chan error, clients)
	var wg sync.WaitGroup
	start := time.Now()
	for c := range clients {
		wg.Go(func() {
			s := servers[c%len(servers)].instances
			for n := 0; time.Since(start) < b.rivals; n++ {
				name := fmt.Sprintf("rival-%d-%d-%d", round, c, n)
				err := create(ctx, s, internalInstance(name, lease))
				if err == nil {
					commits.Add(1)
					for {
						_, _, err = s.Delete(requestContext(ctx), name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{})
						if !apierrors.IsTooManyRequests(err) {
							break
						}
					}
					if err == nil {
						commits.Add(1)
					}
				}
				if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsTooManyRequests(err) {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return commits.Load(), nil
	}
}

// conflicts returns the number of transactions of this process that failed because their inputs had
// changed.
func conflicts() (float64, error) {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, family := range families {
		if family.GetName() != "macrack_txn_conflicts_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			total += metric.GetCounter().GetValue()
		}
	}
	return total, nil
}
