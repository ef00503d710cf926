package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"macrack.io/macrack/test/cluster/await"
	"macrack.io/macrack/test/cluster/etcd"

	clientv3 "go.etcd.io/etcd/client/v3"

	"macrack.io/macrack/test/cluster"
)

const (
	rackPath     = "/apis/rack.macrack.io/v1alpha1"
	instancePath = "/apis/instance.macrack.io/v1alpha1"
	imagePath    = "/apis/image.macrack.io/v1alpha1"
	configPath   = "/apis/config.macrack.io/v1alpha1"
	rbacPath     = "/apis/rbac.authorization.k8s.io/v1"

	macOSImage = "macos-26-xcode-26"
	settling   = 3 * time.Minute
)

// A world is the attacked cluster and its users. Tenant acme has a lease with two instances, tenant
// globex one without instances.
type world struct {
	cluster *cluster.Cluster
	etcd    *clientv3.Client
	users   map[string]*user

	acmeMac, acmeSerial, acmeUID       string
	globexMac, globexSerial, globexUID string
}

// prepare creates the world, or continues with the one that an earlier attack left.
func prepare(ctx context.Context, c *cluster.Cluster) (_ *world, err error) {
	w := &world{cluster: c, users: map[string]*user{}}
	w.etcd, err = etcd.Connect(c.MacrackEtcd())
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	namespace := `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"attack-quota"}}`
	if err := w.make(ctx, "/api/v1/namespaces", namespace); err != nil {
		return nil, err
	}
	for _, r := range rights {
		kind := "RoleBinding"
		if strings.HasPrefix(r.path, "/cluster") {
			kind = "ClusterRoleBinding"
		}
		body := fmt.Sprintf(`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":%q,"metadata":{"name":%q},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":%q}]}`,
			kind, r.name, r.role, r.user)
		if err := w.make(ctx, rbacPath+r.path, body); err != nil {
			return nil, err
		}
	}
	if err := w.lease(ctx, "acme", &w.acmeMac, &w.acmeSerial, &w.acmeUID); err != nil {
		return nil, err
	}
	if err := w.lease(ctx, "globex", &w.globexMac, &w.globexSerial, &w.globexUID); err != nil {
		return nil, err
	}
	for _, name := range []string{"attack-1", "attack-2"} {
		if err := w.instance(ctx, name); err != nil {
			return nil, err
		}
	}
	return w, w.settle(ctx)
}

// close removes the rights that were granted for the attack. The leases stay: their floors are a
// day away.
func (w *world) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, r := range rights {
		remove(rbacPath+r.path+"/"+r.name)(ctx, w, "admin")
	}
	remove("/api/v1/namespaces/attack-quota")(ctx, w, "admin")
	w.etcd.Close()
}

// make creates an object as admin, unless it exists.
func (w *world) make(ctx context.Context, path, body string) error {
	a := post(path, body)(ctx, w, "admin")
	if a.code != http.StatusCreated && a.code != http.StatusConflict {
		return fmt.Errorf("creating in %s: %d %s", path, a.code, short(a.text()))
	}
	return nil
}

type leaseObject struct {
	Metadata struct {
		UID string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		Phase        string `json:"phase"`
		NodeName     string `json:"nodeName"`
		SerialNumber string `json:"serialNumber"`
	} `json:"status"`
}

// lease leases a Mac for a tenant, and waits until the lease is bound.
func (w *world) lease(ctx context.Context, tenant string, mac, serial, uid *string) error {
	path := leases(tenant) + "/attack-" + tenant
	got := leaseObject{}
	if a := get(path)(ctx, w, "admin"); a.code == http.StatusNotFound {
		if free, err := w.freeMacs(ctx); err != nil || free == 0 {
			return errors.Join(err, cluster.ErrNoFreeMac)
		}
		a = post(leases(tenant), leaseBody(`"name":"attack-`+tenant+`"`, `"className":"base"`))(ctx, w, tenant)
		if a.code != http.StatusCreated {
			return fmt.Errorf("leasing a Mac for %s: %d %s", tenant, a.code, short(a.text()))
		}
	}
	err := eventually(ctx, func() error {
		a := get(path)(ctx, w, "admin")
		if err := json.Unmarshal([]byte(a.body), &got); err != nil {
			return err
		}
		if got.Status.NodeName == "" {
			return fmt.Errorf("lease attack-%s is %s", tenant, got.Status.Phase)
		}
		return nil
	})
	*mac, *serial, *uid = got.Status.NodeName, got.Status.SerialNumber, got.Metadata.UID
	return err
}

func (w *world) freeMacs(ctx context.Context) (int, error) {
	list := struct {
		Items []leaseObject `json:"items"`
	}{}
	free := 0
	err := eventually(ctx, func() error {
		a := get(rackPath+"/macnodes")(ctx, w, "admin")
		if err := json.Unmarshal([]byte(a.body), &list); err != nil {
			return err
		}
		free = 0
		for _, mac := range list.Items {
			switch mac.Status.Phase {
			case "Available":
				free++
			case "Pending", "Offline":
				return fmt.Errorf("a Mac is %s", mac.Status.Phase)
			}
		}
		return nil
	})
	return free, err
}

// instance creates an instance of tenant acme, and waits until it runs.
func (w *world) instance(ctx context.Context, name string) error {
	path := instances("acme") + "/" + name
	return eventually(ctx, func() error {
		a := get(path)(ctx, w, "admin")
		got := leaseObject{}
		if a.code == http.StatusOK {
			if err := json.Unmarshal([]byte(a.body), &got); err != nil {
				return err
			}
		}
		switch {
		case a.code == http.StatusNotFound:
			a = post(instances("acme"), instanceBody(`"name":"`+name+`"`, `"leaseName":"attack-acme"`))(ctx, w, "acme")
		case got.Status.Phase == "Running":
			return nil
		case got.Status.Phase == "Stopped", got.Status.Phase == "Failed":
			a = remove(path)(ctx, w, "acme")
		}
		return fmt.Errorf("instance %s is %s: %d %s", name, got.Status.Phase, a.code, short(a.text()))
	})
}

// settle waits until no object changes by itself.
func (w *world) settle(ctx context.Context) error {
	before, err := w.snapshot(ctx)
	if err != nil {
		return err
	}
	return eventually(ctx, func() error {
		if err := await.Sleep(ctx, 2*time.Second); err != nil {
			return err
		}
		after, err := w.snapshot(ctx)
		if err != nil {
			return err
		}
		changes := before.compare(after)
		before = after
		if len(changes) > 0 {
			return fmt.Errorf("it does not settle: %s", strings.Join(changes, "; "))
		}
		return nil
	})
}

// eventually waits until check returns no error.
func eventually(ctx context.Context, check func() error) error {
	return await.Success(ctx, settling, 300*time.Millisecond, check)
}
