package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

func (w *world) quotas() []attempt {
	const family = "quota"
	const namespace = "attack-quota"
	const path = "/api/v1/namespaces/" + namespace + "/resourcequotas"
	set := func(ctx context.Context, w *world, limit int) answer {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"macs"},"spec":{"hard":{"count/macnodeleases.rack.macrack.io":"%d"}}}`, limit)
		return patch(applyPatch, path+"/macs", body)(ctx, w, "admin")
	}
	// closed waits until both servers know of a quota of zero. If they learn of a larger one later,
	// they only refuse more.
	closed := func(ctx context.Context, w *world) error {
		if a := set(ctx, w, 0); a.code >= 300 || a.err != nil {
			return fmt.Errorf("setting a quota: %d %s", a.code, short(a.text()))
		}
		return eventually(ctx, func() error {
			for replica := 1; replica <= 2; replica++ {
				a := call{method: "POST", path: leases(namespace), body: leaseBody(`"generateName":"attack-probe-"`, studio), replica: replica}.do(ctx, w, "acme")
				if a.code != http.StatusForbidden || !strings.Contains(a.body, "exceeded quota") {
					remove(leases(namespace))(ctx, w, "admin")
					return fmt.Errorf("server %d knows no quota: %d %s", replica, a.code, short(a.text()))
				}
			}
			return nil
		})
	}
	within := func(limit, n int, each func(i int) step) step {
		return func(ctx context.Context, w *world, who string) answer {
			defer remove(path+"/macs")(ctx, w, "admin")
			defer remove(leases(namespace))(ctx, w, "admin")
			if err := closed(ctx, w); err != nil {
				return answer{code: -1, err: err}
			}
			if limit > 0 {
				if a := set(ctx, w, limit); a.code >= 300 || a.err != nil {
					return answer{code: -1, body: a.text()}
				}
			}
			codes := countCodes(ctx, w, who, n, each)
			if codes[http.StatusCreated]+codes[http.StatusForbidden] != n {
				return answer{code: -1, err: fmt.Errorf("not all requests were granted or refused: codes %v", codes)}
			}
			got := get(leases(namespace))(ctx, w, "admin")
			list := struct {
				Items []json.RawMessage `json:"items"`
			}{}
			if err := json.Unmarshal([]byte(got.body), &list); err != nil {
				return answer{code: -1, err: err}
			}
			if got.code != http.StatusOK || len(list.Items) != codes[http.StatusCreated] {
				return answer{code: -1, body: fmt.Sprintf("%d leases are listed, of %d that were created: %d %s", len(list.Items), codes[http.StatusCreated], got.code, short(got.text()))}
			}
			if len(list.Items) > limit {
				return answer{code: -1, body: fmt.Sprintf("%d leases with a quota of %d", len(list.Items), limit)}
			}
			return answer{code: got.code, body: fmt.Sprintf("%d leases, no more than a quota of %d", len(list.Items), limit)}
		}
	}
	pending := func(i int) step {
		return post(leases(namespace), leaseBody(fmt.Sprintf(`"name":"attack-%d"`, i), studio))
	}
	return []attempt{
		{family, "a lease with a quota of zero", "acme", within(0, 1, pending), says(200, "no more than"), ""},
		{family, "a lease with a quota of zero, by its generated name", "acme", within(0, 3, func(int) step { return post(leases(namespace), leaseBody(`"generateName":"attack-"`, studio)) }), says(200, "no more than"), ""},
		{family, "thirty leases at once with a quota of two, at both servers", "acme", within(2, 30, func(i int) step {
			return call{method: "POST", path: leases(namespace), body: leaseBody(fmt.Sprintf(`"name":"attack-%d"`, i), studio), replica: 1 + i%2}.do
		}), says(200, "no more than"), ""},
		{family, "the quota itself", "acme", post(path, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"more"},"spec":{"hard":{"count/macnodeleases.rack.macrack.io":"99"}}}`), noRight(), ""},
		{family, "the quota of all, deleted", "acme", remove(path), noRight(), ""},
		{family, "the quota itself", "acme-admin", post("/api/v1/namespaces/acme/resourcequotas", `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"more"},"spec":{"hard":{"count/macnodeleases.rack.macrack.io":"99"}}}`), noRight(), ""},
	}
}
