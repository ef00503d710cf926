package main

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"strings"

	"macrack.io/macrack/test/cluster"
	"macrack.io/macrack/test/cluster/etcd"
)

// show makes a client present a certificate, also to a server that trusts other authorities.
func show(config *tls.Config, pair tls.Certificate) {
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
}

func (w *world) directly() []attempt {
	const family = "direct"
	one := func(w *world) string {
		return fmt.Sprintf("https://127.0.0.1:%d", w.cluster.Port("macrack-apiserver-1"))
	}
	plain := func(w *world) string {
		return fmt.Sprintf("http://127.0.0.1:%d", w.cluster.Port("macrack-apiserver-1"))
	}
	agent := func(w *world) string { return fmt.Sprintf("https://127.0.0.1:%d", w.cluster.Port(w.acmeMac)) }
	trusting := func(certificate func(w *world) (tls.Certificate, error)) func(w *world) (*tls.Config, error) {
		return func(w *world) (*tls.Config, error) {
			config := &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12} // the attacker trusts any server
			if certificate == nil {
				return config, nil
			}
			pair, err := certificate(w)
			show(config, pair)
			return config, err
		}
	}
	unauthenticated := trusting(nil)
	as := func(who string) func(w *world) (*tls.Config, error) {
		return trusting(func(w *world) (tls.Certificate, error) { return w.certificateOf(who) })
	}
	forged := func(name string, groups ...string) func(w *world) (*tls.Config, error) {
		return trusting(func(*world) (tls.Certificate, error) { return forgedCertificate(name, groups...) })
	}
	front := map[string]string{"X-Remote-User": "admin", "X-Remote-Group": "system:masters", "X-Remote-Uid": "1"}
	list := call{method: "GET", path: rackPath + "/macnodeleases"}
	fronted := call{method: "GET", path: rackPath + "/macnodeleases", header: front}
	floor := call{method: "PATCH", path: w.acmeLease(), body: `{"metadata":{"finalizers":null}}`, contentType: mergePatch, header: front}
	refused := want{codes: []int{401, 403}, lacks: w.ours()}
	failed := want{codes: []int{400, 401, 403}, lacks: w.ours()}
	closed := says(0, "remote error: tls:")
	return []attempt{
		{family, "leases, without a certificate", "-", dial(unauthenticated, one, list), refused, ""},
		{family, "leases, as the front proxy without its certificate", "-", dial(unauthenticated, one, fronted), refused, ""},
		{family, "leases, as the front proxy with a tenant's certificate", "-", dial(as("acme"), one, fronted), refused, ""},
		{family, "leases, as the front proxy with its name from the cluster's authority", "-", dial(as("stranger"), one, fronted), refused, ""},
		{family, "leases, as the front proxy with its name from a foreign authority", "-", dial(forged("front-proxy-client"), one, fronted), failed, ""},
		{family, "leases, as an administrator of a foreign authority", "-", dial(forged("admin", "system:masters"), one, list), failed, ""},
		{family, "a floor's finalizer, as the front proxy with an agent's certificate", "-", dial(as("agent"), one, floor), refused, ""},
		{family, "leases, without TLS", "-", dial(unauthenticated, plain, fronted), failed, ""},
		{family, "leases, with an invalid token", "-", dial(unauthenticated, one, call{method: "GET", path: list.path, header: map[string]string{"Authorization": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."}}), refused, ""},
		{family, "leases, with a password", "-", dial(unauthenticated, one, call{method: "GET", path: list.path, header: map[string]string{"Authorization": "Basic YWRtaW46YWRtaW4="}}), refused, ""},
		{family, "leases, with an old TLS version", "-", dial(func(*world) (*tls.Config, error) {
			return &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, nil
		}, one, list), says(0, "protocol version not supported"), ""},
		{family, "leases, with headers of another host", "-", dial(unauthenticated, one, call{method: "GET", path: list.path, header: map[string]string{"X-Forwarded-For": "127.0.0.1", "X-Original-Url": rackPath, "Forwarded": "for=127.0.0.1"}}), refused, ""},
		{family, "metrics, without a certificate", "-", dial(unauthenticated, one, call{method: "GET", path: "/metrics"}), refused, ""},
		{family, "profiles, without a certificate", "-", dial(unauthenticated, one, call{method: "GET", path: "/debug/pprof/"}), refused, ""},
		{family, "the pods of an agent, without a certificate", "-", dial(unauthenticated, agent, call{method: "GET", path: "/pods"}), refused, ""},
		{family, "the pods of an agent, with a foreign certificate", "-", dial(forged("kube-apiserver-kubelet-client", "system:masters"), agent, call{method: "GET", path: "/pods"}), closed, ""},
		{family, "a command on an agent's Mac, without a certificate", "-", dial(unauthenticated, agent, call{method: "POST", path: "/exec/acme/attack-1-vm/vm?command=id&output=1"}), refused, ""},
		{family, "a command on an agent's Mac, as another tenant", "-", dial(as("globex"), agent, call{method: "POST", path: "/exec/acme/attack-1-vm/vm?command=id&output=1"}), closed, ""},
		{family, "the log of another tenant's virtual machine, as a tenant", "-", dial(as("globex"), agent, call{method: "GET", path: "/containerLogs/acme/attack-1-vm/vm"}), closed, ""},
	}
}

func (w *world) etcdAccess() []attempt {
	const family = "etcd"
	url := func(w *world) string { return w.cluster.MacrackEtcd().Servers[0] }
	key := base64.StdEncoding.EncodeToString([]byte("/registry/"))
	end := base64.StdEncoding.EncodeToString([]byte("/registry0"))
	read := call{method: "POST", path: "/v3/kv/range", body: `{"key":"` + key + `","range_end":"` + end + `"}`}
	write := call{method: "POST", path: "/v3/kv/put", body: `{"key":"` + key + `","value":"` + key + `"}`}
	deletion := call{method: "POST", path: "/v3/kv/deleterange", body: `{"key":"` + key + `","range_end":"` + end + `"}`}
	with := func(certificate func(w *world) (tls.Certificate, error)) func(w *world) (*tls.Config, error) {
		return func(w *world) (*tls.Config, error) {
			config, err := etcd.TLS(cluster.EtcdAccess{CAFile: w.cluster.MacrackEtcd().CAFile})
			if err != nil || certificate == nil {
				return config, err
			}
			pair, err := certificate(w)
			show(config, pair)
			return config, err
		}
	}
	of := func(who string) func(w *world) (*tls.Config, error) {
		return with(func(w *world) (tls.Certificate, error) { return w.certificateOf(who) })
	}
	closed := says(0, "remote error: tls:")
	return []attempt{
		{family, "read without a certificate", "-", dial(with(nil), url, read), closed, ""},
		{family, "written without a certificate", "-", dial(with(nil), url, write), closed, ""},
		{family, "emptied without a certificate", "-", dial(with(nil), url, deletion), closed, ""},
		{family, "read with an administrator's certificate of the cluster", "-", dial(of("admin"), url, read), closed, ""},
		{family, "written with the controllers' certificate", "-", dial(of("controllers"), url, write), closed, ""},
		{family, "emptied with an agent's certificate", "-", dial(of("agent"), url, deletion), closed, ""},
		{family, "read with a certificate of a foreign authority", "-", dial(with(func(*world) (tls.Certificate, error) { return forgedCertificate("root") }), url, read), closed, ""},
		{family, "read without TLS", "-", dial(with(nil), func(w *world) string { return strings.Replace(url(w), "https", "http", 1) }, read), anyOf([]int{0, 400}, "connection reset by peer", "EOF", "HTTP request to an HTTPS server"), ""},
	}
}
