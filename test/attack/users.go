package main

import (
	"net/http"

	"k8s.io/client-go/rest"

	"macrack.io/macrack/test/cluster"
)

// A user has a certificate of the cluster's authority.
type user struct {
	name         string
	kube, direct *http.Client
	kubeURL      string
}

// people are the users by their names in the tables.
var people = map[string]struct {
	name   string
	groups []string
}{
	"acme":        {name: "acme"},
	"acme-admin":  {name: "attack-acme-admin"},
	"globex":      {name: "globex"},
	"hardware":    {name: "attack-hardware"},
	"auditor":     {name: "attack-auditor"},
	"asker":       {name: "attack-asker"},
	"root":        {name: "attack-root"},
	"admin":       {name: cluster.Admin},
	"controllers": {name: "system:serviceaccount:" + cluster.Namespace + ":macrack-controllers"},
	"node-no-one": {name: "mallory", groups: []string{"system:nodes"}},
	"stranger":    {name: "front-proxy-client"},
}

// rights are created for the attack in addition to those of artifacts/example, and removed after
// it.
var rights = []struct{ path, name, role, user string }{
	{"/namespaces/acme/rolebindings", "attack-acme-admin", "admin", "attack-acme-admin"},
	{"/clusterrolebindings", "attack-hardware", "macrack-hardware-admin", "attack-hardware"},
	{"/clusterrolebindings", "attack-auditor", "macrack-auditor", "attack-auditor"},
	{"/clusterrolebindings", "attack-asker", "system:node-bootstrapper", "attack-asker"},
	{"/clusterrolebindings", "attack-root", "cluster-admin", "attack-root"},
	{"/namespaces/attack-quota/rolebindings", "attack-tenant", "edit", "acme"},
}

func (w *world) username(who string) string {
	switch who {
	case "agent":
		return "system:node:" + w.acmeMac
	case "other-agent":
		return "system:node:" + w.globexMac
	}
	if p, ok := people[who]; ok {
		return p.name
	}
	return who
}

func (w *world) user(who string) (*user, error) {
	if u, ok := w.users[who]; ok {
		return u, nil
	}
	u, err := w.newUser(w.username(who), people[who].groups)
	if who == "anonymous" {
		u, err = w.anonymous()
	}
	if err == nil {
		w.users[who] = u
	}
	return u, err
}

func (w *world) newUser(name string, groups []string) (*user, error) {
	kube, err := w.cluster.RESTConfig(name, groups...)
	if err != nil {
		return nil, err
	}
	direct, err := w.cluster.ReplicaRESTConfig(1, name, groups...)
	if err != nil {
		return nil, err
	}
	u := &user{name: name, kubeURL: kube.Host}
	if u.kube, err = httpClient(kube); err != nil {
		return nil, err
	}
	u.direct, err = httpClient(direct)
	return u, err
}

// anonymous presents no certificate.
func (w *world) anonymous() (*user, error) {
	kube, err := w.cluster.RESTConfig(cluster.Admin)
	if err != nil {
		return nil, err
	}
	direct, err := w.cluster.ReplicaRESTConfig(1, cluster.Admin)
	if err != nil {
		return nil, err
	}
	u := &user{name: "system:anonymous", kubeURL: kube.Host}
	if u.kube, err = httpClient(rest.AnonymousClientConfig(kube)); err != nil {
		return nil, err
	}
	u.direct, err = httpClient(rest.AnonymousClientConfig(direct))
	return u, err
}

func httpClient(config *rest.Config) (*http.Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err == nil {
		client.CheckRedirect = noRedirect
	}
	return client, err
}
