package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"macrack.io/macrack/pkg/generated/clientset/versioned/scheme"
)

// A snapshot has the content of macrack's etcd and the cluster's Nodes and Pods, without values
// that change by themselves: heartbeats, conditions, counts, managed fields, and the ledger with
// the heads of its chains.
type snapshot map[string]string

// unstable are parts of keys whose values change by themselves: records, the heads of their chains,
// and the servers' health, clocks and pacing.
var unstable = []string{"/auditrecords/", "macrack.io/index/"}

// identities are the index keys that map objects to their owners.
var identities = []string{"macrack.io/index/serial-number/", "macrack.io/index/machine-id/", "macrack.io/index/mac-address/", "macrack.io/index/image-use/"}

func (w *world) snapshot(ctx context.Context) (snapshot, error) {
	s := snapshot{}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	resp, err := w.etcd.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(5000))
	if err != nil {
		return nil, fmt.Errorf("reading etcd: %w", err)
	}
	for _, kv := range resp.Kvs {
		key := string(kv.Key)
		contains := func(part string) bool { return strings.Contains(key, part) }
		switch {
		case slices.ContainsFunc(identities, contains):
			s[key] = string(kv.Value)
		case slices.ContainsFunc(unstable, contains):
		default:
			text, err := decode(kv.Value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			s[key] = text
		}
	}
	if len(s) == 0 {
		return nil, errors.New("etcd holds nothing under /registry/")
	}
	return s, errors.Join(
		s.add(ctx, w, "/api/v1/nodes", func(obj map[string]any) any {
			return []any{obj["spec"], dig(obj, "metadata", "labels"), dig(obj, "status", "capacity"), dig(obj, "status", "allocatable")}
		}),
		s.add(ctx, w, "/api/v1/pods", func(obj map[string]any) any { return obj["spec"] }),
	)
}

// add adds the stable parts of a list of Kubernetes objects.
func (s snapshot) add(ctx context.Context, w *world, path string, stable func(obj map[string]any) any) error {
	a := get(path)(ctx, w, "admin")
	list := struct {
		Items []map[string]any `json:"items"`
	}{}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.code != http.StatusOK {
		return fmt.Errorf("listing %s: %d %s", path, a.code, short(a.text()))
	}
	for _, obj := range list.Items {
		data, err := json.Marshal(stable(obj))
		if err != nil {
			return err
		}
		s[fmt.Sprint(path, "/", dig(obj, "metadata", "namespace"), "/", dig(obj, "metadata", "name"))] = string(data)
	}
	return nil
}

// decode returns a macrack object without the fields that change by themselves.
func decode(value []byte) (string, error) {
	obj, _, err := serializer.NewCodecFactory(scheme.Scheme).UniversalDeserializer().Decode(value, nil, nil)
	if err != nil {
		return "", err
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return "", err
	}
	if meta, ok := content["metadata"].(map[string]any); ok {
		delete(meta, "managedFields")
		delete(meta, "resourceVersion")
		if finalizers, ok := meta["finalizers"].([]any); ok {
			meta["finalizers"] = slices.DeleteFunc(finalizers, func(f any) bool { return f == "foregroundDeletion" }) // a finalizer that a deletion may request
		}
	}
	if status, ok := content["status"].(map[string]any); ok {
		for _, field := range []string{"conditions", "message", "hardware", "images", "ipAddress", "startup", "replicatedOn", "sizeBytes",
			"total", "available", "leased", "held", "quarantined", "offline", "imageDigest"} {
			delete(status, field)
		}
		for _, field := range []string{"ledger", "witness"} { // each refusal that is recorded moves the head
			if ledger, ok := status[field].(map[string]any); ok {
				delete(ledger, "head")
			}
		}
		if status["phase"] == "Offline" { // as on a machine that is too busy for heartbeats
			delete(status, "phase")
		}
	}
	data, err := json.Marshal(content)
	return string(data), err
}

// compare returns the differences.
func (s snapshot) compare(after snapshot) []string {
	var changes []string
	for key, old := range s {
		new, ok := after[key]
		switch {
		case !ok:
			changes = append(changes, key+" was deleted")
		case new != old && !offline(old, new):
			changes = append(changes, fmt.Sprintf("%s was %s and is %s", key, difference(old, new), difference(new, old)))
		}
	}
	for key := range after {
		if _, ok := s[key]; !ok {
			changes = append(changes, key+" is new")
		}
	}
	sort.Strings(changes)
	return changes
}

// offline reports whether two texts differ only in a phase that one of them omits.
func offline(a, b string) bool {
	without := func(s string) string {
		for _, phase := range []string{"Available", "Leased"} {
			s = strings.ReplaceAll(s, `"phase":"`+phase+`",`, "")
			s = strings.ReplaceAll(s, `,"phase":"`+phase+`"`, "")
		}
		return s
	}
	return strings.Contains(a, `"kind":"MacNode"`) && (!strings.Contains(a, `"phase"`) || !strings.Contains(b, `"phase"`)) && without(a) == without(b)
}

// difference returns the part of a from its first difference to b on.
func difference(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return short(a[max(0, i-60):min(len(a), i+120)])
}

func dig(obj map[string]any, path ...string) any {
	var new any = obj
	for _, name := range path {
		m, ok := new.(map[string]any)
		if !ok {
			return nil
		}
		new = m[name]
	}
	return new
}

// auditRecord has the fields of a record that are checked.
type auditRecord struct {
	Time  time.Time `json:"time"`
	Type  string    `json:"type"`
	Actor struct {
		Username string `json:"username"`
	} `json:"actor"`
	Details struct {
		Reason  string `json:"reason"`
		Message string `json:"message"`
		Count   int64  `json:"count"`
	} `json:"details"`
}

func (w *world) records(ctx context.Context) ([]auditRecord, error) {
	a := call{method: http.MethodGet, path: rackPath + "/auditrecords", replica: 1}.do(ctx, w, "admin")
	list := struct {
		Items []auditRecord `json:"items"`
	}{}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || a.code != http.StatusOK {
		return nil, fmt.Errorf("listing the records: %d %s", a.code, short(a.text()))
	}
	return list.Items, nil
}

// folded is the period in which identical rejections fold into one record.
const folded = time.Minute

// countRecords counts the records by the actor of an attempt that must leave no record.
func (w *world) countRecords(ctx context.Context, a attempt) (int, error) {
	if a.record != "none" {
		return 0, nil
	}
	return w.recordsOf(ctx, a, time.Time{}, "")
}

// recordsOf counts the records by the actor of an attempt: all, or those of a type and a reason
// ("type/reason").
func (w *world) recordsOf(ctx context.Context, a attempt, since time.Time, wanted string) (int, error) {
	recordType, reason, _ := strings.Cut(wanted, "/")
	all, err := w.records(ctx)
	n := 0
	for _, r := range all {
		if r.Actor.Username == w.username(a.who) && !r.Time.Before(since) && (recordType == "" || r.Type == recordType) &&
			(reason == "" || r.Details.Reason == reason) {
			n++
		}
	}
	return n, err
}

// checkRecord returns an error if a record of an attempt is missing, or if there is a forbidden
// one.
func (w *world) checkRecord(ctx context.Context, a attempt, began time.Time, before int) error {
	switch a.record {
	case "":
		return nil
	case "none":
		n, err := w.recordsOf(ctx, a, time.Time{}, "")
		if err == nil && n != before {
			err = fmt.Errorf("%d records were written, wanted 0", n-before)
		}
		return err
	}
	n, err := w.recordsOf(ctx, a, began.Add(-folded-5*time.Second), a.record)
	if err == nil && n == 0 {
		err = fmt.Errorf("the ledger has no record %s by %s", a.record, w.username(a.who))
	}
	return err
}
