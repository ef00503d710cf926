package certissuer

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// APIServiceResource is the resource of APIServices.
var APIServiceResource = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// apiServices are the APIServices of macrack-apiserver.
var apiServices = []string{
	"v1alpha1.rack.macrack.io", "v1alpha1.instance.macrack.io", "v1alpha1.image.macrack.io", "v1alpha1.config.macrack.io",
}

// trust copies the authorities of macrack-apiserver to the APIServices. Without a caBundle,
// kube-apiserver forwards nothing.
func (i *Issuer) trust(ctx context.Context) error {
	secret, err := i.Secrets.Get(ctx, servingSecret, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the authority of macrack-apiserver: %w", err)
	}
	bundle := secret.Data[caKey]
	if _, err := cert.ParseCertsPEM(bundle); err != nil {
		return fmt.Errorf("Secret %s: %s: %w; add the authority of the certificate", servingSecret, caKey, err)
	}
	var errs []error
	for _, name := range apiServices {
		errs = append(errs, i.setCABundle(ctx, name, bundle))
	}
	return errors.Join(errs...)
}

func (i *Issuer) setCABundle(ctx context.Context, name string, bundle []byte) error {
	service, err := i.APIServices.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	text, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
	if old, err := base64.StdEncoding.DecodeString(text); err == nil && bytes.Equal(old, bundle) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"caBundle": bundle}})
	if err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Setting the caBundle", "apiService", name)
	_, err = i.APIServices.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: Name})
	return err
}
