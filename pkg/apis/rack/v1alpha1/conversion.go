package v1alpha1

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// addFieldLabelConversionFuncs registers the field labels that field selectors of the kinds accept.
func addFieldLabelConversionFuncs(scheme *runtime.Scheme) error {
	for kind, labels := range map[string][]string{
		"MacNode":      {"metadata.name", "spec.className", "spec.serialNumber", "status.phase"},
		"MacNodeLease": {"metadata.name", "metadata.namespace", "spec.className", "status.phase", "status.nodeName", "status.serialNumber", "status.namespaceUID"},
		"AuditRecord":  {"metadata.name", "metadata.namespace", "type", "tenant", "chassis.serialNumber"},
	} {
		convert := func(label, value string) (string, string, error) {
			if !slices.Contains(labels, label) {
				return "", "", fmt.Errorf("%s cannot be selected by the field %q, only by %q", kind, label, labels)
			}
			return label, value, nil
		}
		if err := scheme.AddFieldLabelConversionFunc(SchemeGroupVersion.WithKind(kind), convert); err != nil {
			return err
		}
	}
	return nil
}
