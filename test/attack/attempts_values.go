package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
)

var protobufSerializer = protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)

// encoded sends an object as protocol buffers, which can carry what JSON cannot.
func encoded(method, path string, obj runtime.Object) step {
	return func(ctx context.Context, w *world, who string) answer {
		var body bytes.Buffer
		if err := protobufSerializer.Encode(obj, &body); err != nil {
			return answer{err: err}
		}
		return call{method: method, path: path, body: body.String(), contentType: runtime.ContentTypeProtobuf}.do(ctx, w, who)
	}
}

// changeEncoded reads an object into obj, changes it and writes it back as protocol buffers.
func changeEncoded[T runtime.Object](read, write string, into func() T, edit func(obj T)) step {
	return func(ctx context.Context, w *world, who string) answer {
		got := call{method: http.MethodGet, path: read, accept: runtime.ContentTypeProtobuf}.do(ctx, w, "admin")
		obj, _, err := protobufSerializer.Decode([]byte(got.body), nil, into())
		if err != nil {
			return answer{err: fmt.Errorf("reading %s: %d %w", read, got.code, err)}
		}
		edit(obj.(T))
		return encoded(http.MethodPut, write, obj)(ctx, w, who)
	}
}

func newMacOSInstance() *instancev1alpha1.MacOSInstance { return &instancev1alpha1.MacOSInstance{} }
func newMacNodeLease() *rackv1alpha1.MacNodeLease       { return &rackv1alpha1.MacNodeLease{} }
func newMacNode() *rackv1alpha1.MacNode                 { return &rackv1alpha1.MacNode{} }

// values are attempts to store values that other readers cannot decode, that take long to read, or
// that leave no room for others.
func (w *world) values() []attempt {
	const family = "values"
	one, lease, mac := instances("acme")+"/attack-1", w.acmeLease(), w.acmeNode()
	attempts := []attempt{
		{family, "too many managers of a lease and of an instance", "globex", w.managed, says(200, "Stopped"), ""},
	}
	const managers = 15_000
	for _, dryRun := range []string{"", "?dryRun=All"} {
		entry := `{"manager":"attack","operation":"Apply","apiVersion":"rack.macrack.io/v1alpha1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:annotations":{"f:x":{}}}}}`
		entries, tooMany := "["+strings.Repeat(entry+",", managers)+entry+"]", "metadata.managedFields: Too many"
		attempts = append(attempts,
			attempt{family, "a lease with thousands of managers" + dryRun, "acme", post(leases("acme")+dryRun, leaseBody(`"name":"attack-x","managedFields":`+entries, `"className":"studio"`)), badRequest(tooMany), ""},
			attempt{family, "a change of a lease with thousands of managers" + dryRun, "acme", changeEncoded(lease, lease+dryRun, newMacNodeLease, func(l *rackv1alpha1.MacNodeLease) { l.ManagedFields = manyManagers(managers) }), badRequest(tooMany), ""},
			attempt{family, "a merge patch with thousands of managers" + dryRun, "acme", patch(mergePatch, lease+dryRun, `{"metadata":{"managedFields":`+entries+`}}`), badRequest(tooMany), ""},
			attempt{family, "a strategic merge patch with thousands of managers" + dryRun, "acme", patch(strategicPatch, lease+dryRun, `{"metadata":{"managedFields":`+entries+`}}`), badRequest(tooMany), ""},
			attempt{family, "a JSON patch with thousands of managers" + dryRun, "acme", patch(jsonPatch, lease+dryRun, `[{"op":"add","path":"/metadata/managedFields","value":`+entries+`}]`), invalid(tooMany), ""},
		)
		for _, year := range []int64{253402300800, math.MaxInt64} { // the first second of the year 10000, and one whose year wraps around
			at := metav1.NewTime(time.Unix(year, 0))
			late := func(obj metav1.Object) {
				fields := []metav1.ManagedFieldsEntry{{Manager: "attack-late", Operation: metav1.ManagedFieldsOperationUpdate, Time: &at,
					APIVersion: rackv1alpha1.SchemeGroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:x":{}}}}`)}}
				if _, ok := obj.(*instancev1alpha1.MacOSInstance); ok {
					fields[0].APIVersion = instancev1alpha1.SchemeGroupVersion.String()
				}
				obj.SetManagedFields(fields)
			}
			condition := metav1.Condition{Type: "Attack", Status: metav1.ConditionTrue, Reason: "Attack", LastTransitionTime: at}
			// A write of a status keeps the stored managed fields, so the late time is dropped with
			// the rest of the metadata sent. JSON cannot carry such a time: an answer with 200
			// shows that it is absent.
			kept := ignored()
			name := fmt.Sprintf(" at second %d%s", year, dryRun)
			attempts = append(attempts,
				attempt{family, "an instance managed" + name, "acme", changeEncoded(one, one+dryRun, newMacOSInstance, func(i *instancev1alpha1.MacOSInstance) { late(i) }), invalid("metadata.managedFields[0].time"), ""},
				attempt{family, "a lease managed" + name, "acme", changeEncoded(lease, lease+dryRun, newMacNodeLease, func(l *rackv1alpha1.MacNodeLease) { late(l) }), invalid("metadata.managedFields[0].time"), ""},
				attempt{family, "the status of an instance, managed" + name, "controllers", changeEncoded(one, one+"/status"+dryRun, newMacOSInstance, func(i *instancev1alpha1.MacOSInstance) { late(i) }), kept, ""},
				attempt{family, "the status of a lease, managed" + name, "controllers", changeEncoded(lease, lease+"/status"+dryRun, newMacNodeLease, func(l *rackv1alpha1.MacNodeLease) { late(l) }), kept, ""},
				attempt{family, "the status of a Mac, managed" + name, "agent", changeEncoded(mac, mac+"/status"+dryRun, newMacNode, func(n *rackv1alpha1.MacNode) { late(n) }), kept, ""},
				attempt{family, "a condition of a Mac" + name, "agent", changeEncoded(mac, mac+"/status"+dryRun, newMacNode, func(n *rackv1alpha1.MacNode) { meta.SetStatusCondition(&n.Status.Conditions, condition) }), invalid("lastTransitionTime"), ""},
				attempt{family, "a condition of a lease" + name, "controllers", changeEncoded(lease, lease+"/status"+dryRun, newMacNodeLease, func(l *rackv1alpha1.MacNodeLease) { meta.SetStatusCondition(&l.Status.Conditions, condition) }), invalid("lastTransitionTime"), ""},
				attempt{family, "a condition of an instance" + name, "controllers", changeEncoded(one, one+"/status"+dryRun, newMacOSInstance, func(i *instancev1alpha1.MacOSInstance) { meta.SetStatusCondition(&i.Status.Conditions, condition) }), invalid("lastTransitionTime"), ""},
			)
		}
		for name, text := range map[string]string{"a NUL": "a\x00b", "bytes that are not UTF-8": "a\xffb"} {
			annotate := func(obj metav1.Object) { obj.SetAnnotations(map[string]string{"attack": text}) }
			name += dryRun
			attempts = append(attempts,
				attempt{family, "an annotation of an instance with " + name, "acme", changeEncoded(one, one+dryRun, newMacOSInstance, func(i *instancev1alpha1.MacOSInstance) { annotate(i) }), invalid("metadata.annotations[attack]"), ""},
				attempt{family, "an annotation of a lease with " + name, "acme", changeEncoded(lease, lease+dryRun, newMacNodeLease, func(l *rackv1alpha1.MacNodeLease) { annotate(l) }), invalid("metadata.annotations[attack]"), ""},
				attempt{family, "a boot ID with " + name, "agent", changeEncoded(mac, mac+"/status"+dryRun, newMacNode, func(n *rackv1alpha1.MacNode) { n.Status.BootID = text }), invalid("status.bootID"), ""},
			)
		}
		attempts = append(attempts, w.endlessNumbers(family, dryRun)...)
	}
	checks := func(names ...string) step {
		var all []string
		for _, name := range names {
			all = append(all, `{"name":"`+name+`","observedGeneration":1,"reason":"ImageInvalid","message":"attack"}`)
		}
		return patch(mergePatch, mac+"/status", `{"status":{"imageChecks":[`+strings.Join(all, ",")+`]}}`)
	}
	var many []string
	for i := range 33 {
		many = append(many, fmt.Sprintf("attack-%d", i))
	}
	return append(attempts,
		attempt{family, "an agent that finds the Ready image of others invalid", "agent", unchangedBy(imagePath+"/macosimages/"+macOSImage, checks(macOSImage)), ignored(), ""},
		attempt{family, "an agent that checks an image that does not exist", "agent", unchangedBy(imagePath+"/macosimages", checks("attack-none")), ignored(), ""},
		attempt{family, "an agent that checks more images than one", "agent", checks(many...), invalid("status.imageChecks: Too many: 33"), ""},
		attempt{family, "an agent that checks one image twice", "agent", checks("attack-none", "attack-none"), invalid("Duplicate"), ""},
		attempt{family, "an agent that checks an image with a name of a megabyte", "agent", checks(strings.Repeat("x", 1<<20)), invalid("status.imageChecks[0].name"), ""},
		attempt{family, "labels that are wrong ten thousand times", "acme", labels(one, 10_000), invalid("metadata.labels: Too long"), ""},
		attempt{family, "labels that are wrong a thousand times", "acme", labels(one, 1000), want{codes: []int{http.StatusUnprocessableEntity}, says: "errors: Too many: "}, ""},
		attempt{family, "an annotation with a NUL, by a merge patch", "acme", patch(mergePatch, one, `{"metadata":{"annotations":{"attack":"a\u0000b"}}}`), invalid("metadata.annotations[attack]"), ""},
		attempt{family, "a generateName of a megabyte", "acme", patch(mergePatch, lease, `{"metadata":{"generateName":"`+strings.Repeat("a", 1<<20)+`"}}`), invalid("metadata.generateName: Too long"), ""},
		attempt{family, "a selfLink of a megabyte", "acme", patch(mergePatch, lease, `{"metadata":{"selfLink":"`+strings.Repeat("a", 1<<20)+`"}}`), invalid("metadata.selfLink: Too long"), ""},
		attempt{family, "an owner with a name of a megabyte", "acme", patch(mergePatch, lease, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","uid":"u","name":"`+strings.Repeat("a", 1<<20)+`"}]}}`), invalid("metadata.ownerReferences: Too long"), ""},
	)
}

// labels puts labels with invalid names on an object. An answer with all of them would take seconds
// or minutes of CPU.
func labels(path string, n int) step {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"-%d":""`, i))
	}
	return patch(mergePatch, path, `{"metadata":{"labels":{`+strings.Join(all, ",")+`}}}`)
}

// unchangedBy runs a step, waits until controllers must have seen it, and answers with an error if
// an object has changed since.
func unchangedBy(path string, do step) step {
	return func(ctx context.Context, w *world, who string) answer {
		before := get(path)(ctx, w, "admin")
		done := do(ctx, w, who)
		if done.code != http.StatusOK {
			return done
		}
		time.Sleep(3 * time.Second)
		after := get(path)(ctx, w, "admin")
		if before.code != http.StatusOK || statuses(before.body) != statuses(after.body) {
			return answer{err: fmt.Errorf("%s changed from %s to %s", path, short(before.text()), short(after.text()))}
		}
		return done
	}
}

// statuses returns an object or a list without the resource version of a list.
func statuses(body string) string {
	if at := strings.Index(body, `"items"`); at >= 0 {
		return body[at:]
	}
	return body
}

// manyManagers are the managed fields of n managers, which cost seconds, unless their number is
// bounded. A call waits 30 seconds for its answer.
func manyManagers(n int) []metav1.ManagedFieldsEntry {
	entries := make([]metav1.ManagedFieldsEntry, n)
	for i := range entries {
		entries[i] = metav1.ManagedFieldsEntry{
			Manager: fmt.Sprint(i), Operation: metav1.ManagedFieldsOperationApply, APIVersion: rackv1alpha1.SchemeGroupVersion.String(),
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:annotations":{"f:x":{}}}}`),
		}
	}
	return entries
}

// endlessNumbers are quantities and durations that take a processor minutes, unless their digits
// and exponents are bounded. A call waits 30 seconds for its answer.
func (w *world) endlessNumbers(family, dryRun string) []attempt {
	one, created := instances("acme")+"/attack-1", instances("globex")
	var attempts []attempt
	for _, number := range []string{"1e1000000000", "1e-1000000000", "1E999999999", "1" + strings.Repeat("0", 100000), "0." + strings.Repeat("0", 100000) + "1"} {
		requests := `"resources":{"requests":{"macrack.io/macos-vm":"` + number + `"}}`
		body := instanceBody(`"name":"attack-number"`, `"leaseName":"attack-globex",`+requests)
		obj := &instancev1alpha1.MacOSInstance{ObjectMeta: metav1.ObjectMeta{Name: "attack-number", Namespace: "globex"}, Spec: instancev1alpha1.MacOSInstanceSpec{
			LeaseName: "attack-globex", ClassName: "small", ImageName: macOSImage,
			Resources: instancev1alpha1.InstanceResources{Requests: instancev1alpha1.ResourceList{"macrack.io/macos-vm": scalar.Quantity{Text: number}}},
		}}
		obj.SetGroupVersionKind(instancev1alpha1.SchemeGroupVersion.WithKind("MacOSInstance"))
		name, refused := number[:min(len(number), 14)]+dryRun, invalid("macrack.io/macos-vm")
		apply := call{method: http.MethodPatch, path: created + "/attack-number?fieldManager=attack&force=true" + strings.Replace(dryRun, "?", "&", 1), body: body, contentType: applyPatch}.do
		attempts = append(attempts,
			attempt{family, name + " virtual machines, in JSON", "globex", post(created+dryRun, body), refused, ""},
			attempt{family, name + " virtual machines, in protocol buffers", "globex", encoded(http.MethodPost, created+dryRun, obj), refused, ""},
			attempt{family, name + " virtual machines, by apply", "globex", apply, refused, ""},
			attempt{family, name + " virtual machines, by a merge patch", "acme", patch(mergePatch, one+dryRun, `{"spec":{`+requests+`}}`), invalid("spec"), ""},
			attempt{family, name + " virtual machines, by a strategic merge patch", "acme", patch(strategicPatch, one+dryRun, `{"spec":{`+requests+`}}`), invalid("spec"), ""},
			attempt{family, "a lease of " + name + " hours", "acme", post(leases("acme")+dryRun, leaseBody(`"name":"attack-number"`, base+`,"minimumDuration":"`+number+`h"`)), invalid("spec.minimumDuration"), ""},
		)
	}
	return attempts
}

// managed runs the life of an instance while 26 managers each apply a thousand annotations to it
// and to its lease.
func (w *world) managed(ctx context.Context, _ *world, who string) answer {
	lease := leases(who) + "/attack-" + who
	if a := applied(lease, rackv1alpha1.SchemeGroupVersion.String(), "MacNodeLease")(ctx, w, who); a.code != http.StatusOK {
		return a
	}
	a := w.live(ctx, who, applied(instances(who)+"/attack-life", instancev1alpha1.SchemeGroupVersion.String(), "MacOSInstance"))
	if cleared := patch(mergePatch, lease, `{"metadata":{"annotations":null}}`)(ctx, w, who); cleared.code != http.StatusOK {
		return cleared
	}
	return a
}

// applied applies the same annotations to an object as 26 managers, and answers with the first
// error.
func applied(path, apiVersion, kind string) step {
	return func(ctx context.Context, w *world, who string) answer {
		annotations := map[string]string{}
		for i := range 1000 {
			annotations[fmt.Sprintf("note-%d", i)] = "x"
		}
		name := path[strings.LastIndex(path, "/")+1:]
		body, err := json.Marshal(map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name, "annotations": annotations}})
		if err != nil {
			return answer{err: err}
		}
		var a answer
		for i := range 26 {
			a = call{method: http.MethodPatch, path: fmt.Sprintf("%s?fieldManager=attack-%d&force=true", path, i), body: string(body), contentType: applyPatch}.do(ctx, w, who)
			if a.code != http.StatusOK {
				return a
			}
		}
		return a
	}
}
