package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// actors are attempts to pass for another user: the former owner of a namespace, another user in
// the ledger, or an unrecorded user.
func (w *world) actors() []attempt {
	const family = "actors"
	const forged = `"namespaceUID":"00000000-0000-0000-0000-000000000001","requestedBy":{"username":"root","uid":"0"}`
	asked := func(serial string) step {
		return post(leases("acme")+"?dryRun=All", leaseBody(`"name":"attack-x"`, base+`,"serialNumber":"`+serial+`"`))
	}
	// Names are stored cut, with dots: a refusal would keep the user of a long name from leases,
	// and a rejection out of the ledger.
	long := strings.Repeat("n", 100<<10)
	groups := "system:masters"
	for i := range 100 {
		groups += fmt.Sprintf("\ngroup-%d-%s", i, strings.Repeat("g", 1<<10))
	}
	// The record is by the impersonated user; onRecord returns it.
	longName := map[string]string{"Impersonate-User": long, "Impersonate-Group": "system:masters"}
	return []attempt{
		{family, "a lease requested by a user with a name of 100 kB", "admin", call{method: http.MethodPost, path: leases("acme") + "?dryRun=All", body: leaseBody(`"name":"attack-x"`, base), header: longName}.do,
			want{codes: []int{http.StatusCreated}, says: `"username":"nnn`, lacks: []string{long[:1025]}, holds: cutAt(`n..."`)}, ""},
		{family, "a refusal of a user with a name of 100 kB", "admin", onRecord("attack-long-name", "globex", longName),
			want{codes: []int{http.StatusForbidden}, says: `"username":"nnn`, lacks: []string{long[:4097]}, holds: cutAt(`n..."`)}, ""},
		{family, "a refusal of a user in groups of 100 kB", "admin", onRecord("attack-long-groups", "globex", map[string]string{"Impersonate-User": "attack-x", "Impersonate-Group": groups}),
			want{codes: []int{http.StatusForbidden}, says: `"group-62-`, lacks: []string{`"group-63-`}}, ""},
		{family, "a refusal of a user with an extra of 100 kB", "admin", onRecord("attack-long-extra", "globex", map[string]string{"Impersonate-User": "attack-x", "Impersonate-Group": "system:masters", "Impersonate-Extra-Attack": long}),
			want{codes: []int{http.StatusForbidden}, says: `"username":"attack-x"`, lacks: []string{long[:64]}}, ""},
		{family, "the lease of the former owner of a namespace, by every verb", "acme", w.nextOwner, want{codes: []int{http.StatusNotFound}, lacks: []string{"attack-former-secret"}}, ""},
		{family, "a lease at another user's request, in another namespace", "acme", stored(leases("acme"), leaseWith(`"name":"attack-x"`, studio, forged)),
			want{codes: []int{http.StatusCreated}, holds: checkFields(
				map[string]any{"status.requestedBy.username": "acme"}, map[string]any{"status.namespaceUID": "00000000-0000-0000-0000-000000000001"})}, ""},
		{family, "the requester and the namespace UID of a lease, by the status", "controllers", patch(mergePatch, w.acmeLease()+"/status", `{"status":{`+forged+`}}`), ignored(), ""},
		{family, "the requester of a lease, by the status", "root", patch(mergePatch, w.acmeLease()+"/status", `{"status":{"requestedBy":null,"namespaceUID":null}}`), ignored(), ""},
		{family, "the namespace UID of an instance, by its agent", "agent", patch(mergePatch, instances("acme")+"/attack-1/status", `{"status":{"namespaceUID":"00000000-0000-0000-0000-000000000001"}}`), ignored(), ""},
		{family, "the ID of one's request in the record, by Audit-ID", "globex", requestIDs("attack-id-1", "c0ffee00-0000-0000-0000-000000000000"),
			want{codes: []int{http.StatusForbidden}, says: `"claimedRequestID":"c0ffee00-0000-0000-0000-000000000000"`, lacks: []string{`"requestID":"c0ffee00`}}, "InstanceRejected/NoSuchImage"},
		{family, "an ID in reversed direction", "globex", requestIDs("attack-id-2", "a\u202eb\u200bc"),
			want{codes: []int{http.StatusForbidden}, says: `"claimedRequestID":"a\\u202eb\\u200bc"`, lacks: []string{"\u202e", "\u200b"}}, "InstanceRejected/NoSuchImage"},
		{family, "an ID of ten thousand characters", "globex", requestIDs("attack-id-3", strings.Repeat("x", 10000)),
			want{codes: []int{http.StatusForbidden}, says: `"claimedRequestID":"xxxx`, lacks: []string{strings.Repeat("x", 65)}}, "InstanceRejected/NoSuchImage"},
		{family, "a reason that reads backwards", "acme", post(instances("acme")+"/attack-1/stop?dryRun=All", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","reason":"a\u202eb"}`), invalid("printable"), ""},
		{family, "an invisible reason", "acme", post(instances("acme")+"/attack-1/stop?dryRun=All", `{"apiVersion":"instance.macrack.io/v1alpha1","kind":"MacOSInstanceStop","reason":"\u3164"}`), invalid("printable"), ""},
		{family, "whether a Mac is there, by a dry run", "acme", same(asked(w.globexSerial), asked("SIM9999999"), w.globexSerial, "SIM9999999"), forbidden("does not exist or is not free"), "CrossTenantRejected/MacIsLeased"},
		{family, "whether a Mac is there, by asking for the wrong class", "acme",
			same(post(leases("acme")+"?dryRun=All", leaseBody(`"name":"attack-x"`, studio+`,"serialNumber":"`+w.globexSerial+`"`)),
				post(leases("acme")+"?dryRun=All", leaseBody(`"name":"attack-x"`, studio+`,"serialNumber":"SIM9999999"`)), w.globexSerial, "SIM9999999"), forbidden("does not exist or is not free"), ""},
	}
}

// cutAt wants a text with a mark where it was cut.
func cutAt(text string) func(string) error {
	return func(body string) error {
		if !strings.Contains(body, text) {
			return fmt.Errorf("%s is not there", text)
		}
		return nil
	}
}

// same takes two steps, and answers with the first if the answers differ in one given text only.
func same(first, second step, ofFirst, ofSecond string) step {
	return func(ctx context.Context, w *world, who string) answer {
		a, b := first(ctx, w, who), second(ctx, w, who)
		if a.code != b.code || strings.ReplaceAll(a.body, ofFirst, ofSecond) != b.body {
			return answer{err: fmt.Errorf("%d %s is not %d %s", a.code, short(a.text()), b.code, short(b.text()))}
		}
		return a
	}
}

// requestIDs creates an instance that is refused, with an Audit-ID, and answers with its record.
func requestIDs(name, id string) step {
	return onRecord(name, "globex", map[string]string{"Audit-ID": id})
}

// onRecord creates an instance that is refused, in a namespace, with headers, and answers with its
// record.
func onRecord(name, namespace string, header map[string]string) step {
	return func(ctx context.Context, w *world, who string) answer {
		body := strings.Replace(instanceBody(`"name":"`+name+`"`, `"leaseName":"attack-`+namespace+`"`), macOSImage, "attack-no-image", 1)
		a := call{method: http.MethodPost, path: instances(namespace), body: body, header: header}.do(ctx, w, who)
		if a.code != http.StatusForbidden {
			return a
		}
		list := struct {
			Items []json.RawMessage `json:"items"`
		}{}
		all := get(records(namespace))(ctx, w, "admin")
		if err := json.Unmarshal([]byte(all.body), &list); err != nil {
			return answer{err: err}
		}
		found := answer{err: errors.New("record not found")}
		for _, item := range list.Items {
			if strings.Contains(string(item), `"instance":{"namespace":"`+namespace+`","name":"`+name+`"`) {
				found = answer{code: a.code, body: string(item)}
			}
		}
		return found
	}
}

// nextOwner removes the finalizers of a deleted namespace with a lease, and creates it again for a
// user who tries every verb on the lease. It answers with 404 if no verb finds the lease.
func (w *world) nextOwner(ctx context.Context, _ *world, who string) (result answer) {
	const namespace, secret = "attack-next", "attack-former-secret"
	path := "/api/v1/namespaces/" + namespace
	lease := leases(namespace) + "/former"
	if err := w.make(ctx, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`); err != nil {
		return answer{err: err}
	}
	defer func() {
		patch(mergePatch, lease, `{"metadata":{"finalizers":null}}`)(ctx, w, "admin")
		remove(path)(ctx, w, "admin")
		if err := w.gone(ctx, path); err != nil && result.err == nil {
			result = answer{err: err}
		}
	}()
	// An additional finalizer keeps a lease without a Mac, as the floor keeps one with a Mac.
	if err := w.make(ctx, leases(namespace), leaseBody(`"name":"former","finalizers":["example.com/keep"],"labels":{"secret":"`+secret+`"}`, studio)); err != nil {
		return answer{err: err}
	}
	remove(path)(ctx, w, "admin")
	err := eventually(ctx, func() error {
		if a := get(lease)(ctx, w, "admin"); !strings.Contains(a.body, `"deletionTimestamp"`) {
			return fmt.Errorf("the lease is not being deleted: %d %s", a.code, short(a.text()))
		}
		put(path+"/finalize", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"},"spec":{"finalizers":[]}}`)(ctx, w, "admin")
		return w.goneNow(ctx, path)
	})
	if err != nil {
		return answer{err: err}
	}
	if err := w.make(ctx, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`); err != nil {
		return answer{err: err}
	}
	if err := w.make(ctx, rbacPath+"/namespaces/"+namespace+"/rolebindings", `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"attack"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"edit"},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"`+w.username(who)+`"}]}`); err != nil {
		return answer{err: err}
	}
	// The rights of the user take effect after a delay.
	if err := eventually(ctx, func() error {
		if a := get(leases(namespace))(ctx, w, who); a.code != http.StatusOK {
			return fmt.Errorf("%d %s", a.code, short(a.text()))
		}
		return nil
	}); err != nil {
		return answer{err: err}
	}
	result = answer{code: http.StatusNotFound}
	for _, try := range []struct {
		name string
		step step
		code int
	}{
		{"get", get(lease), 404},
		{"list", get(leases(namespace)), 200},
		{"list from the cache", get(leases(namespace) + "?resourceVersion=0"), 200},
		{"watch", get(leases(namespace) + "?watch=1&timeoutSeconds=1&resourceVersion=0"), 200},
		{"lengthen", patch(mergePatch, lease, `{"spec":{"minimumDuration":"9000h"}}`), 404},
		{"lengthen by a JSON patch", patch(jsonPatch, lease, `[{"op":"add","path":"/spec/minimumDuration","value":"9000h"}]`), 404},
		{"lengthen by PUT", put(lease, leaseBody(`"name":"former"`, studio+`,"minimumDuration":"9000h"`)), 404},
		{"lengthen by apply", patch(applyPatch, lease, leaseBody(`"name":"former"`, studio+`,"minimumDuration":"9000h"`)), 409},
		{"remove its finalizer", patch(mergePatch, lease, `{"metadata":{"finalizers":null}}`), 404},
		{"delete", remove(lease), 404},
		{"delete all", remove(leases(namespace)), 200},
		{"create under its name", post(leases(namespace), leaseBody(`"name":"former"`, studio)), 409},
	} {
		a := try.step(ctx, w, who)
		if a.code != try.code || strings.Contains(a.text(), secret) {
			return answer{err: fmt.Errorf("%s: %d, wanted %d: %s", try.name, a.code, try.code, short(a.text()))}
		}
	}
	if a := get(lease)(ctx, w, "admin"); a.code != http.StatusOK || strings.Contains(a.body, "9000h") {
		return answer{err: fmt.Errorf("the lease was changed: %d %s", a.code, short(a.text()))}
	}
	return result
}

func (w *world) goneNow(ctx context.Context, path string) error {
	if a := get(path)(ctx, w, "admin"); a.code != http.StatusNotFound {
		return fmt.Errorf("%s still exists: %d", path, a.code)
	}
	return nil
}

// gone waits until an object is deleted.
func (w *world) gone(ctx context.Context, path string) error {
	return eventually(ctx, func() error { return w.goneNow(ctx, path) })
}
