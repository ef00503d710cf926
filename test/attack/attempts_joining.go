package main

import (
	"context"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"macrack.io/macrack/pkg/agent/credentials"
	"macrack.io/macrack/test/cluster"
)

const csrsPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// joining are ways to become a Mac, or to serve under another name.
func (w *world) joining() []attempt {
	const family = "joining"
	client, serving := certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName
	node := nodeSubject
	other := w.globexMac
	token := func(do func(bearer string) step, macs string, groups ...string) step {
		return w.asToken(macs, groups, do)
	}
	asks := func(signer string, subject pkix.Name, dns ...string) func(bearer string) step {
		return func(bearer string) step { return csr(bearer, signer, subject, dns...) }
	}
	reads := func(path string) func(bearer string) step {
		return func(bearer string) step { return withBearer(http.MethodGet, path, "", bearer) }
	}
	return []attempt{
		{family, "another Mac, with a token for one's own", "anonymous", token(asks(client, node(other)), w.acmeMac), denied("is for Mac " + w.acmeMac + ", not for " + other), ""},
		{family, "an online Mac, with a token for it", "anonymous", token(asks(client, node(other)), other), denied("name already in use"), ""},
		{family, "a Mac, with a token for no Mac", "anonymous", token(asks(client, node(other)), other, "system:bootstrappers:macrack"), denied("is for no Mac"), ""},
		{family, "a Mac, with a token for Linux machines", "anonymous", token(asks(client, node(other)), other, "system:bootstrappers:attack"), noRight(), ""},
		{family, "an unregistered Mac", "anonymous", token(asks(client, node("attack-x")), "attack-x"), denied(`MacNode "attack-x" not found`), ""},
		{family, "an administrator, with a token", "anonymous", token(asks(client, pkix.Name{CommonName: "system:node:" + w.acmeMac, Organization: []string{"system:masters"}}), w.acmeMac), denied("must be O=system:nodes"), ""},
		{family, "a Mac's serving certificate, with a token", "anonymous", token(asks(serving, node(w.acmeMac), w.acmeMac), w.acmeMac), denied("may not serve"), ""},
		{family, "Macs, with a token", "anonymous", token(reads(rackPath+"/macnodes"), w.acmeMac), noRight(), ""},
		{family, "other tokens, with a token", "anonymous", token(reads("/api/v1/namespaces/kube-system/secrets"), w.acmeMac), noRight(), ""},
		{family, "another Mac, with the certificate of one", "agent", csr("", client, node(other)), forbidden("can only create a node CSR"), ""},
		{family, "to serve as another Mac", "agent", csr("", serving, node(other), other), forbidden("can only create a node CSR"), ""},
		{family, "to serve as kube-apiserver", "agent", csr("", serving, node(w.acmeMac), w.acmeMac, "kubernetes.default.svc"), denied(`DNS name "kubernetes.default.svc" does not belong to the Mac`), ""},
		{family, "to serve at a Service's address", "agent", w.atService(func(ip string) step { return csr("", serving, node(w.acmeMac), ip) }), denied("it belongs to Service default/attack-x"), ""},
		{family, "to serve under another Mac's name", "agent", csr("", serving, node(w.acmeMac), other), denied("does not belong to the Mac"), ""},
		{family, "a Mac", "acme", csr("", client, node(w.acmeMac)), noRight(), ""},
		{family, "a Mac", "acme-admin", csr("", client, node(w.acmeMac)), noRight(), ""},
		{family, "a Mac", "auditor", csr("", client, node(w.acmeMac)), noRight(), ""},
		{family, "a Mac, by one who may ask for certificates", "asker", csr("", client, node(other)), denied("use a bootstrap token"), ""},
		{family, "that a user becomes an administrator", "controllers", approving("kubernetes.io/kube-apiserver-client"), forbidden("not permitted to approve"), ""},
		{family, "another's request approved", "agent", approving(client), noRight(), ""},
	}
}

// denied wants a certificate request that was denied with this message, and that got no
// certificate.
func denied(text string) want {
	return want{codes: []int{http.StatusOK}, says: "", holds: func(body string) error {
		request := certificatesv1.CertificateSigningRequest{}
		if err := json.Unmarshal([]byte(body), &request); err != nil {
			return err
		}
		if len(request.Status.Certificate) > 0 {
			return errors.New("there is a certificate")
		}
		for _, c := range request.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied {
				return want{codes: []int{http.StatusOK}, says: text}.check(answer{code: http.StatusOK, body: c.Message})
			}
		}
		return fmt.Errorf("it is not denied: %+v", request.Status.Conditions)
	}}
}

func withBearer(method, path, body, bearer string) step {
	c := call{method: method, path: path, body: body}
	if bearer != "" {
		c.header = map[string]string{"Authorization": "Bearer " + bearer}
	}
	return c.do
}

// asToken creates a token for a Mac, or with the given groups, and runs a step with it.
func (w *world) asToken(mac string, groups []string, do func(bearer string) step) step {
	return func(ctx context.Context, w *world, who string) answer {
		config, err := w.cluster.RESTConfig(cluster.Admin)
		if err != nil {
			return answer{err: err}
		}
		kube, err := kubernetes.NewForConfig(config)
		if err != nil {
			return answer{err: err}
		}
		token, err := credentials.CreateToken(ctx, kube, mac, time.Now().Add(10*time.Minute))
		if err != nil {
			return answer{err: err}
		}
		secret := "/api/v1/namespaces/kube-system/secrets/bootstrap-token-" + token.ID
		defer remove(secret)(ctx, w, "admin")
		for _, group := range groups {
			if a := patch(mergePatch, secret, `{"stringData":{"auth-extra-groups":"`+group+`"}}`)(ctx, w, "admin"); a.code != http.StatusOK {
				return answer{err: fmt.Errorf("setting the groups of a token: %d %s", a.code, short(a.text()))}
			}
		}
		if err := w.knowsGroups(ctx, who, token.Bearer(), groups); err != nil {
			return answer{err: err}
		}
		return eventuallyKnown(ctx, w, who, token.Bearer(), do)
	}
}

// knowsGroups waits until kube-apiserver knows the groups that a token was given after its
// creation.
func (w *world) knowsGroups(ctx context.Context, who, bearer string, groups []string) error {
	if len(groups) == 0 {
		return nil
	}
	const review = `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`
	return eventually(ctx, func() error {
		a := withBearer(http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", review, bearer)(ctx, w, who)
		got := authenticationv1.SelfSubjectReview{}
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.code != http.StatusCreated {
			return fmt.Errorf("asking for the groups of a token: %d %s", a.code, short(a.text()))
		}
		for _, group := range got.Status.UserInfo.Groups {
			if strings.HasPrefix(group, "system:bootstrappers:") && !slices.Contains(groups, group) {
				return fmt.Errorf("the token still has the group %s", group)
			}
		}
		return nil
	})
}

// eventuallyKnown waits until kube-apiserver knows a token.
func eventuallyKnown(ctx context.Context, w *world, who, bearer string, do func(bearer string) step) answer {
	var a answer
	err := eventually(ctx, func() error {
		if a = do(bearer)(ctx, w, who); a.code == http.StatusUnauthorized {
			return errors.New("the token is not known")
		}
		return nil
	})
	if err != nil {
		return answer{err: err}
	}
	return a
}

// csr requests a certificate, waits for the decision, and answers with the stored request.
func csr(bearer, signer string, subject pkix.Name, names ...string) step {
	return func(ctx context.Context, w *world, who string) answer {
		made := postCSR(bearer, signer, subject, names...)(ctx, w, who)
		if made.code != http.StatusCreated {
			return made
		}
		path, err := csrPath(made)
		if err != nil {
			return answer{err: err}
		}
		defer remove(path)(ctx, w, "admin")
		var got answer
		err = eventually(ctx, func() error {
			got = get(path)(ctx, w, "admin")
			request := certificatesv1.CertificateSigningRequest{}
			if err := json.Unmarshal([]byte(got.body), &request); err != nil {
				return err
			}
			if len(request.Status.Conditions) == 0 {
				return errors.New("no decision")
			}
			return nil
		})
		if err != nil {
			return answer{err: err}
		}
		return got
	}
}

// atService creates a Service and runs a step with its address.
func (w *world) atService(do func(ip string) step) step {
	return func(ctx context.Context, w *world, who string) answer {
		const services = "/api/v1/namespaces/default/services"
		made := post(services, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"attack-x"},"spec":{"ports":[{"port":443}]}}`)(ctx, w, "admin")
		if made.code != http.StatusCreated {
			return answer{err: fmt.Errorf("making a Service: %d %s", made.code, made.text())}
		}
		defer remove(services+"/attack-x")(ctx, w, "admin")
		service := corev1.Service{}
		if err := json.Unmarshal([]byte(made.body), &service); err != nil {
			return answer{err: err}
		}
		return do(service.Spec.ClusterIP)(ctx, w, who)
	}
}

func csrPath(made answer) (string, error) {
	request := certificatesv1.CertificateSigningRequest{}
	err := json.Unmarshal([]byte(made.body), &request)
	return csrsPath + "/" + request.Name, err
}

// postCSR requests a certificate with names and IP addresses.
func postCSR(bearer, signer string, subject pkix.Name, names ...string) step {
	return func(ctx context.Context, w *world, who string) answer {
		request, err := certificateRequest(subject, names...)
		if err != nil {
			return answer{err: err}
		}
		usage := certificatesv1.UsageClientAuth
		if signer == certificatesv1.KubeletServingSignerName {
			usage = certificatesv1.UsageServerAuth
		}
		body, err := json.Marshal(certificatesv1.CertificateSigningRequest{
			TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
			ObjectMeta: metav1.ObjectMeta{GenerateName: "attack-"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request: request, SignerName: signer,
				Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
			},
		})
		if err != nil {
			return answer{err: err}
		}
		return withBearer(http.MethodPost, csrsPath, string(body), bearer)(ctx, w, who)
	}
}

// approving approves a certificate request that an administrator has created for a user without
// rights.
func approving(signer string) step {
	return func(ctx context.Context, w *world, who string) answer {
		subject := pkix.Name{CommonName: "attack"}
		if signer == certificatesv1.KubeAPIServerClientKubeletSignerName {
			subject = pkix.Name{CommonName: "system:node:attack-y", Organization: []string{"system:nodes"}} // not a Mac: no controller decides
		}
		made := postCSR("", signer, subject)(ctx, w, "admin")
		if made.code != http.StatusCreated {
			return answer{err: fmt.Errorf("asking: %d %s", made.code, made.text())}
		}
		path, err := csrPath(made)
		if err != nil {
			return answer{err: err}
		}
		defer remove(path)(ctx, w, "admin")
		return change(path, path+"/approval", func(obj map[string]any) {
			obj["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Approved", "status": "True", "reason": "Attack", "message": "x"}}}
		})(ctx, w, who)
	}
}
