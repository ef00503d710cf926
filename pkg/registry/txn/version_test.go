package txn_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"macrack.io/macrack/pkg/registry/txn"
)

// A Thing is the internal version of a ThingV1, which is what is stored.
type Thing struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Count int
}

type ThingV1 struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Words             string `json:"words"`
}

type ThingList struct{ List[Thing] }

func (in *Thing) DeepCopyObject() runtime.Object {
	return clone(in, func(o *Thing) *metav1.ObjectMeta { return &o.ObjectMeta })
}

func (in *ThingV1) DeepCopyObject() runtime.Object {
	return clone(in, func(o *ThingV1) *metav1.ObjectMeta { return &o.ObjectMeta })
}

func (in *ThingList) DeepCopyObject() runtime.Object {
	out := *in
	out.Items = cloneItems(in.Items, (*Thing).DeepCopyObject)
	return &out
}

func thingScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	internal := schema.GroupVersion{Group: GV.Group, Version: runtime.APIVersionInternal}
	scheme.AddKnownTypeWithName(internal.WithKind("Thing"), &Thing{})
	scheme.AddKnownTypeWithName(internal.WithKind("ThingList"), &ThingList{})
	scheme.AddKnownTypeWithName(GV.WithKind("Thing"), &ThingV1{})
	metav1.AddToGroupVersion(scheme, GV)
	for _, err := range []error{
		scheme.AddConversionFunc((*Thing)(nil), (*ThingV1)(nil), func(a, b any, _ conversion.Scope) error {
			in, out := a.(*Thing), b.(*ThingV1)
			out.ObjectMeta, out.Words = in.ObjectMeta, strings.Repeat("one ", in.Count)
			return nil
		}),
		scheme.AddConversionFunc((*ThingV1)(nil), (*Thing)(nil), func(a, b any, _ conversion.Scope) error {
			in, out := a.(*ThingV1), b.(*Thing)
			out.ObjectMeta, out.Count = in.ObjectMeta, len(strings.Fields(in.Words))
			return nil
		}),
	} {
		if err != nil {
			panic(err)
		}
	}
	return scheme
}

// Objects are stored in a version and handed to planners in the internal one,
// whether they come from a watch cache or from etcd.
func TestInternalVersion(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	scheme := thingScheme()
	codecs := serializer.NewCodecFactory(scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	c := config(endpoint, nil)
	c.Codec = codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), GV, schema.GroupVersion{Group: GV.Group, Version: runtime.APIVersionInternal})
	things, sums := GV.WithResource("things").GroupResource(), GV.WithResource("sums").GroupResource()
	backend := txn.NewBackend(restOptions(c), map[schema.GroupResource]txn.Planner{
		things: func(ctx context.Context, tx *txn.Tx, old, new runtime.Object) error {
			sum := &Thing{}
			if err := tx.Get(ctx, sums, "", "sum", sum); err != nil {
				return err
			}
			sum.Count += new.(*Thing).Count
			if old != nil {
				sum.Count -= old.(*Thing).Count
			}
			return tx.Update(ctx, sums, sum)
		},
	})
	store := func(gr schema.GroupResource) *genericregistry.Store {
		st := strategy{scheme, names.SimpleNameGenerator, false}
		r := &genericregistry.Store{
			NewFunc: func() runtime.Object { return &Thing{} }, NewListFunc: func() runtime.Object { return &ThingList{} },
			DefaultQualifiedResource: gr, SingularQualifiedResource: gr,
			CreateStrategy: st, UpdateStrategy: st, DeleteStrategy: st, TableConvertor: rest.NewDefaultTableConvertor(gr),
		}
		if err := r.CompleteWithOptions(&generic.StoreOptions{RESTOptions: backend}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Destroy)
		return r
	}
	thingStore, sumStore := store(things), store(sums)
	thing := func(name string, n int) *Thing { return &Thing{ObjectMeta: metav1.ObjectMeta{Name: name}, Count: n} }
	settle(t, sumStore, mustCreate(t, cluster, sumStore, thing("sum", 0)))
	want := func(n int) {
		t.Helper()
		resp, err := etcd.Get(ctx, "/registry/toy.example/sums/sum")
		if err != nil {
			t.Fatal(err)
		}
		stored := &ThingV1{}
		if err := json.Unmarshal(resp.Kvs[0].Value, stored); err != nil {
			t.Fatal(err)
		}
		if got := len(strings.Fields(stored.Words)); got != n || stored.APIVersion != "toy.example/v1" {
			t.Errorf("stored %s, want %d words", resp.Kvs[0].Value, n)
		}
	}
	mustCreate(t, cluster, thingStore, thing("a", 3)) // by the watch cache
	want(3)
	mustCreate(t, cluster, thingStore, thing("b", 2)) // by what is remembered
	want(5)
	if _, err := change(cluster, sumStore, "sum", func(s *Thing) { s.Count = 1 }); err != nil {
		t.Fatal(err)
	}
	if _, err := change(cluster, thingStore, "a", func(a *Thing) { a.Count = 4 }); err != nil { // by etcd, or the cache
		t.Fatal(err)
	}
	want(2)
	if err := backend.FreezeCache(sums, "sum", &Thing{}); err != nil {
		t.Fatal(err)
	}
	if _, err := change(cluster, sumStore, "sum", func(s *Thing) { s.Count = 7 }); err != nil {
		t.Fatal(err)
	}
	mustCreate(t, cluster, thingStore, thing("c", 1)) // by etcd
	want(8)
}

// An object must be read as the type that it is of.
func TestWrongType(t *testing.T) {
	endpoint, _ := startEtcd(t, false)
	var plan func(context.Context, *txn.Tx) error
	s := startPlanned(t, endpoint, planWith(&plan))
	settle(t, s.Leases, mustCreate(t, cluster, s.Leases, &Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease"}}))
	plan = func(ctx context.Context, tx *txn.Tx) error { return tx.Get(ctx, Leases, "", "lease", &Node{}) }
	if _, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}); err == nil || !strings.Contains(err.Error(), "*txn_test.Lease") {
		t.Errorf("lease read as a node: %v", err)
	}
}
