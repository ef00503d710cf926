package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
	"macrack.io/macrack/pkg/rules"
)

// The twin has the same kinds as custom resources, with the same columns. A webhook enforces the
// limit of two instances at creation, and a rule in the schema keeps an instance in its lease.
const (
	twinGroup   = "twin.example.com"
	twinVersion = twinGroup + "/v1alpha1"
)

// schemaOf returns the structural schema of a type, as controller-gen would.
func schemaOf(t reflect.Type) map[string]any {
	switch t {
	case reflect.TypeFor[metav1.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[scalar.Duration]():
		return map[string]any{"type": "string"}
	case reflect.TypeFor[scalar.Quantity]():
		return map[string]any{"x-kubernetes-int-or-string": true}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schemaOf(t.Elem())
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int32, reflect.Int64:
		return map[string]any{"type": "integer", "format": t.Kind().String()}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		properties := map[string]any{}
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			properties[name] = schemaOf(t.Field(i).Type)
		}
		return map[string]any{"type": "object", "properties": properties}
	}
	panic(fmt.Sprintf("%s has no schema", t))
}

// never returns a validation rule that makes some text fields of a structure immutable.
func never(names ...string) map[string]any {
	var same []string
	for _, name := range names {
		same = append(same, fmt.Sprintf("self.%s == oldSelf.%s", name, name))
	}
	return map[string]any{"rule": strings.Join(same, " && "), "message": strings.Join(names, ", ") + " cannot be changed"}
}

func definition(kind, plural string, spec map[string]any, status reflect.Type, columns [][2]string, selectable ...string) *unstructured.Unstructured {
	printed := []any{}
	for _, c := range columns {
		column := map[string]any{"name": c[0], "type": "string", "jsonPath": c[1], "priority": int64(0)}
		switch c[0] {
		case "Age":
			column["type"] = "date"
		case "Node", "Serial", "MAC", "Machine-ID":
			column["priority"] = int64(1)
		}
		printed = append(printed, column)
	}
	selectableFields := []any{}
	for _, path := range selectable {
		selectableFields = append(selectableFields, map[string]any{"jsonPath": path})
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": plural + "." + twinGroup},
		"spec": map[string]any{
			"group": twinGroup, "scope": "Namespaced",
			"names": map[string]any{"kind": kind, "plural": plural},
			"versions": []any{map[string]any{
				"name": "v1alpha1", "served": true, "storage": true,
				"subresources":             map[string]any{"status": map[string]any{}},
				"additionalPrinterColumns": printed,
				"selectableFields":         selectableFields,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"spec": spec, "status": schemaOf(status)},
				}},
			}},
		},
	}}
}

func (b *bench) installTwin(ctx context.Context, config *rest.Config) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	instanceSpec := schemaOf(reflect.TypeFor[instancev1alpha1.MacOSInstanceSpec]())
	instanceSpec["x-kubernetes-validations"] = []any{never("leaseName", "className", "imageName")}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, crd := range []*unstructured.Unstructured{
		definition("MacOSInstance", "macosinstances", instanceSpec, reflect.TypeFor[instancev1alpha1.MacOSInstanceStatus](), [][2]string{
			{"Lease", ".spec.leaseName"}, {"Image", ".spec.imageName"}, {"Class", ".spec.className"}, {"Phase", ".status.phase"}, {"IP", ".status.ipAddress.value"},
			{"Age", ".metadata.creationTimestamp"}, {"Node", ".status.nodeName"}, {"Serial", ".status.serialNumber"}, {"MAC", ".status.macAddress"}, {"Machine-ID", ".status.machineID"},
		}, ".spec.leaseName"),
		definition("MacNodeLease", "macnodeleases", schemaOf(reflect.TypeFor[rackv1alpha1.MacNodeLeaseSpec]()), reflect.TypeFor[rackv1alpha1.MacNodeLeaseStatus](), [][2]string{
			{"Class", ".spec.className"}, {"Phase", ".status.phase"}, {"Age", ".metadata.creationTimestamp"},
		}),
	} {
		if _, err := definitions.Create(ctx, crd, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := b.installWebhook(ctx, config); err != nil {
		return err
	}
	// The kinds are served, and the webhook is called, a moment later.
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := b.twin.probe(ctx)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the twin is not served: %w", err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// probe checks that instances are listed, and that the webhook is called.
func (s *side) probe(ctx context.Context) error {
	if _, err := s.do(ctx, http.MethodGet, s.instances(tenant), "", nil); err != nil {
		return err
	}
	_, err := s.do(ctx, http.MethodPost, s.instances(tenant)+"?dryRun=All", "application/json", fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":"MacOSInstance","metadata":{"name":"probe"},"spec":{"leaseName":%q}}`, s.version, noLease))
	if err == nil || !strings.Contains(err.Error(), "has no lease") {
		return fmt.Errorf("the webhook is not called yet: %w", err)
	}
	return nil
}

// noLease is the name of a lease that the webhook always refuses.
const noLease = "none"

// installWebhook serves the webhook in this process, as its operator would in a separate one.
func (b *bench) installWebhook(ctx context.Context, config *rest.Config) error {
	certificate, caBundle, err := selfSigned()
	if err != nil {
		return err
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	gv, err := schema.ParseGroupVersion(twinVersion)
	if err != nil {
		return err
	}
	instances := client.Resource(gv.WithResource("macosinstances"))
	server := &http.Server{ErrorLog: log.New(&bytes.Buffer{}, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if err := admit(r.Context(), instances, review.Request); err != nil {
			review.Response.Allowed, review.Response.Result = false, &metav1.Status{Message: err.Error(), Code: http.StatusForbidden}
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	})}
	go func() { _ = server.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = server.Close() })

	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	address := (&url.URL{Scheme: "https", Host: listener.Addr().String(), Path: "/validate"}).String()
	_, err = kube.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: twinGroup},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "instances." + twinGroup,
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &address, CABundle: caBundle},
			AdmissionReviewVersions: []string{"v1"},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			TimeoutSeconds:          ptr.To[int32](30),
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{twinGroup}, APIVersions: []string{"*"}, Resources: []string{"macosinstances"}},
			}},
		}},
	}, metav1.CreateOptions{})
	return err
}

// admit refuses the third instance of a lease, based on the current ones. Two concurrent creations
// can slip through, which a webhook cannot prevent.
func admit(ctx context.Context, instances dynamic.NamespaceableResourceInterface, request *admissionv1.AdmissionRequest) error {
	var i instancev1alpha1.MacOSInstance
	if err := json.Unmarshal(request.Object.Raw, &i); err != nil {
		return err
	}
	if i.Spec.LeaseName == noLease {
		return fmt.Errorf("instance %q has no lease", i.Name)
	}
	list, err := instances.Namespace(request.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.leaseName=" + i.Spec.LeaseName})
	if err != nil {
		return err
	}
	var taken []string
	for _, other := range list.Items {
		if other.GetDeletionTimestamp() == nil {
			taken = append(taken, other.GetName())
		}
	}
	return rules.CheckSlot(i.Spec.LeaseName, taken)
}

func selfSigned() (tls.Certificate, []byte, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
