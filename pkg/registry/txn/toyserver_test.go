package txn_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"macrack.io/macrack/pkg/registry/txn"
)

// Server is the stores of one API server.
type Server struct {
	Backend   *txn.Backend
	Instances *genericregistry.Store
	Leases    *genericregistry.Store
	Nodes     *genericregistry.Store
	Records   *genericregistry.Store
}

type strategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

func (s strategy) NamespaceScoped() bool                                          { return s.namespaced }
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

// Planners are the rules across the resources.
var Planners = map[schema.GroupResource]txn.Planner{Instances: planInstance, Leases: planLease}

// NewServer returns a server of what is stored in etcd.
func NewServer(config storagebackend.Config, planners map[schema.GroupResource]txn.Planner) (*Server, error) {
	config.Codec = Codec
	s := &Server{Backend: txn.NewBackend(restOptions(config), planners, txn.WithoutWatchCache(Records))}
	var err error
	store := func(gr schema.GroupResource, singular string, namespaced bool, newFunc, newList func() runtime.Object) *genericregistry.Store {
		st := strategy{Scheme, names.SimpleNameGenerator, namespaced}
		r := &genericregistry.Store{
			NewFunc: newFunc, NewListFunc: newList, DefaultQualifiedResource: gr,
			SingularQualifiedResource: schema.GroupResource{Group: gr.Group, Resource: singular},
			CreateStrategy:            st, UpdateStrategy: st, DeleteStrategy: st,
			TableConvertor: rest.NewDefaultTableConvertor(gr),
		}
		if e := r.CompleteWithOptions(&generic.StoreOptions{RESTOptions: s.Backend}); e != nil && err == nil {
			err = e
		}
		return r
	}
	s.Instances = store(Instances, "instance", true, func() runtime.Object { return &Instance{} }, func() runtime.Object { return &InstanceList{} })
	s.Leases = store(Leases, "lease", false, func() runtime.Object { return &Lease{} }, func() runtime.Object { return &LeaseList{} })
	s.Nodes = store(Nodes, "node", false, func() runtime.Object { return &Node{} }, func() runtime.Object { return &NodeList{} })
	s.Records = store(Records, "record", false, func() runtime.Object { return &Record{} }, func() runtime.Object { return &RecordList{} })
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if s.ready() == nil {
			return s, nil
		}
		if time.Now().After(deadline) {
			return nil, s.ready()
		}
	}
}

func (s *Server) stores() []*genericregistry.Store {
	return []*genericregistry.Store{s.Instances, s.Leases, s.Nodes, s.Records}
}

func (s *Server) ready() error {
	for _, st := range s.stores() {
		if err := st.ReadinessCheck(); err != nil {
			return err
		}
	}
	return nil
}

// Destroy closes the server's connections, whatever it is doing.
func (s *Server) Destroy() {
	for _, st := range s.stores() {
		st.Destroy()
	}
}

type restOptions storagebackend.Config

func (c restOptions) GetRESTOptions(gr schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := storagebackend.Config(c)
	return generic.RESTOptions{
		StorageConfig:           config.ForResource(gr),
		Decorator:               genericregistry.StorageWithCacher(),
		DeleteCollectionWorkers: 4,
		EnableGarbageCollection: true,
		ResourcePrefix:          gr.Group + "/" + gr.Resource,
	}, nil
}

// planInstance gives a new instance a slot of its lease, and its machine to it
// alone. It takes them back from a deleted one.
func planInstance(ctx context.Context, tx *txn.Tx, oldObj, newObj runtime.Object) error {
	old, _ := oldObj.(*Instance)
	new, _ := newObj.(*Instance)
	switch {
	case old == nil:
		lease := &Lease{}
		if err := tx.Get(ctx, Leases, "", new.Lease, lease); err != nil {
			return err
		}
		for i, o := range lease.Slots {
			if o == (Occupant{}) {
				new.Slot = i
				lease.Slots[i] = Occupant{new.Namespace, new.Name, new.UID}
				if err := tx.Update(ctx, Leases, lease); err != nil {
					return err
				}
				if err := takeMachine(ctx, tx, new); err != nil {
					return err
				}
				return record(ctx, tx, "create", new.Lease, new)
			}
		}
		return apierrors.NewForbidden(Instances, new.Name, fmt.Errorf("lease %s is full", new.Lease))
	case new == nil:
		lease := &Lease{}
		if err := tx.Get(ctx, Leases, "", old.Lease, lease); err != nil {
			return err
		}
		if lease.Slots[old.Slot].UID != old.UID {
			return apierrors.NewInternalError(fmt.Errorf("instance %s has lost its slot", old.Name))
		}
		lease.Slots[old.Slot] = Occupant{}
		if err := tx.Update(ctx, Leases, lease); err != nil {
			return err
		}
		if old.Machine != "" {
			if _, _, err := tx.GetKey(ctx, "machine", old.Machine); err != nil {
				return err
			}
			if err := tx.DeleteKey("machine", old.Machine); err != nil {
				return err
			}
		}
		return record(ctx, tx, "delete", old.Lease, old)
	case old.Lease != new.Lease || old.Slot != new.Slot || old.Machine != new.Machine:
		return apierrors.NewForbidden(Instances, new.Name, fmt.Errorf("lease, slot and machine are fixed"))
	case old.Note != new.Note:
		return record(ctx, tx, "update", new.Lease, new)
	}
	return nil
}

func takeMachine(ctx context.Context, tx *txn.Tx, new *Instance) error {
	if new.Machine == "" {
		return nil
	}
	owner, taken, err := tx.GetKey(ctx, "machine", new.Machine)
	if err != nil {
		return err
	}
	if taken {
		return apierrors.NewForbidden(Instances, new.Name, fmt.Errorf("machine %s is %s", new.Machine, owner))
	}
	return tx.CreateKey("machine", new.Machine, []byte(new.UID))
}

// planLease has a lease's node point back at it.
func planLease(ctx context.Context, tx *txn.Tx, oldObj, newObj runtime.Object) error {
	old, _ := oldObj.(*Lease)
	new, _ := newObj.(*Lease)
	switch {
	case old == nil:
		if new.Node != "" || new.Slots != ([Slots]Occupant{}) {
			return apierrors.NewForbidden(Leases, new.Name, fmt.Errorf("a new lease is unbound and free"))
		}
		return nil
	case new == nil:
		if old.Node != "" || old.Slots != ([Slots]Occupant{}) {
			return apierrors.NewConflict(Leases, old.Name, fmt.Errorf("in use"))
		}
		return nil
	case old.Slots != new.Slots:
		return apierrors.NewForbidden(Leases, new.Name, fmt.Errorf("only instances take slots"))
	case old.Node == new.Node:
		return nil
	case old.Node != "" && new.Node != "":
		return apierrors.NewConflict(Leases, new.Name, fmt.Errorf("bound to %s", old.Node))
	}
	node := &Node{}
	if err := tx.Get(ctx, Nodes, "", old.Node+new.Node, node); err != nil {
		return err
	}
	verb := "bind"
	switch {
	case new.Node == "":
		node.Lease, verb = "", "unbind"
	case node.Lease != "":
		return apierrors.NewConflict(Nodes, node.Name, fmt.Errorf("bound to %s", node.Lease))
	default:
		node.Lease = new.Name
	}
	if err := tx.Update(ctx, Nodes, node); err != nil {
		return err
	}
	return record(ctx, tx, verb, new.Name, new)
}

// record appends to the lease's chain of records.
func record(ctx context.Context, tx *txn.Tx, verb, lease string, of runtime.Object) error {
	m, err := meta.Accessor(of)
	if err != nil {
		return err
	}
	r := &Record{Verb: verb, Subject: m.GetName(), SubjectUID: m.GetUID(), Lease: lease, Sequence: 1}
	head, exists, err := tx.GetKey(ctx, "chain", lease)
	if err != nil {
		return err
	}
	if exists {
		last, err := strconv.Atoi(string(head))
		if err != nil {
			return err
		}
		r.Sequence = last + 1
	}
	if err := tx.PutKey("chain", lease, []byte(strconv.Itoa(r.Sequence))); err != nil {
		return err
	}
	if u, ok := genericrequest.UserFrom(ctx); ok {
		r.User = u.GetName()
	}
	r.Name = string(uuid.NewUUID())
	r.UID = types.UID(r.Name)
	r.CreationTimestamp = metav1.Now()
	return tx.Create(ctx, Records, r)
}
