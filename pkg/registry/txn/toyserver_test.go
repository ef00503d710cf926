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
func planInstance(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
	was, _ := old.(*Instance)
	is, _ := new.(*Instance)
	switch {
	case was == nil:
		lease := &Lease{}
		if err := tx.Get(ctx, Leases, "", is.Lease, lease); err != nil {
			return err
		}
		for i, o := range lease.Slots {
			if o == (Occupant{}) {
				is.Slot = i
				lease.Slots[i] = Occupant{is.Namespace, is.Name, is.UID}
				if err := tx.Update(ctx, Leases, lease); err != nil {
					return err
				}
				if err := takeMachine(ctx, tx, is); err != nil {
					return err
				}
				return record(ctx, tx, "create", is.Lease, is)
			}
		}
		return apierrors.NewForbidden(Instances, is.Name, fmt.Errorf("lease %s is full", is.Lease))
	case is == nil:
		lease := &Lease{}
		if err := tx.Get(ctx, Leases, "", was.Lease, lease); err != nil {
			return err
		}
		if lease.Slots[was.Slot].UID != was.UID {
			return apierrors.NewInternalError(fmt.Errorf("instance %s has lost its slot", was.Name))
		}
		lease.Slots[was.Slot] = Occupant{}
		if err := tx.Update(ctx, Leases, lease); err != nil {
			return err
		}
		if was.Machine != "" {
			if _, _, err := tx.GetKey(ctx, "machine", was.Machine); err != nil {
				return err
			}
			if err := tx.DeleteKey("machine", was.Machine); err != nil {
				return err
			}
		}
		return record(ctx, tx, "delete", was.Lease, was)
	case was.Lease != is.Lease || was.Slot != is.Slot || was.Machine != is.Machine:
		return apierrors.NewForbidden(Instances, is.Name, fmt.Errorf("lease, slot and machine are fixed"))
	case was.Note != is.Note:
		return record(ctx, tx, "update", is.Lease, is)
	}
	return nil
}

func takeMachine(ctx context.Context, tx *txn.Tx, is *Instance) error {
	if is.Machine == "" {
		return nil
	}
	owner, taken, err := tx.GetKey(ctx, "machine", is.Machine)
	if err != nil {
		return err
	}
	if taken {
		return apierrors.NewForbidden(Instances, is.Name, fmt.Errorf("machine %s is %s", is.Machine, owner))
	}
	return tx.CreateKey("machine", is.Machine, []byte(is.UID))
}

// planLease has a lease's node point back at it.
func planLease(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
	was, _ := old.(*Lease)
	is, _ := new.(*Lease)
	switch {
	case was == nil:
		if is.Node != "" || is.Slots != ([Slots]Occupant{}) {
			return apierrors.NewForbidden(Leases, is.Name, fmt.Errorf("a new lease is unbound and free"))
		}
		return nil
	case is == nil:
		if was.Node != "" || was.Slots != ([Slots]Occupant{}) {
			return apierrors.NewConflict(Leases, was.Name, fmt.Errorf("in use"))
		}
		return nil
	case was.Slots != is.Slots:
		return apierrors.NewForbidden(Leases, is.Name, fmt.Errorf("only instances take slots"))
	case was.Node == is.Node:
		return nil
	case was.Node != "" && is.Node != "":
		return apierrors.NewConflict(Leases, is.Name, fmt.Errorf("bound to %s", was.Node))
	}
	node := &Node{}
	if err := tx.Get(ctx, Nodes, "", was.Node+is.Node, node); err != nil {
		return err
	}
	verb := "bind"
	switch {
	case is.Node == "":
		node.Lease, verb = "", "unbind"
	case node.Lease != "":
		return apierrors.NewConflict(Nodes, node.Name, fmt.Errorf("bound to %s", node.Lease))
	default:
		node.Lease = is.Name
	}
	if err := tx.Update(ctx, Nodes, node); err != nil {
		return err
	}
	return record(ctx, tx, verb, is.Name, is)
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
