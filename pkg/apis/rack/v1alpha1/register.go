package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the name of the group.
const GroupName = "rack.macrack.io"

// SchemeGroupVersion is the group and version of these types.
var SchemeGroupVersion = schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}

var (
	// SchemeBuilder collects the functions that add the types to a scheme.
	SchemeBuilder      = runtime.NewSchemeBuilder(addKnownTypes, addDefaultingFuncs, addFieldLabelConversionFuncs)
	localSchemeBuilder = &SchemeBuilder
	// AddToScheme adds the types, their conversions and their defaults to a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

// Resource returns the group resource of a resource of the group.
func Resource(resource string) schema.GroupResource {
	return SchemeGroupVersion.WithResource(resource).GroupResource()
}

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(SchemeGroupVersion,
		&MacNodeClass{},
		&MacNodeClassList{},
		&MacNode{},
		&MacNodeList{},
		&MacNodeLease{},
		&MacNodeLeaseList{},
		&AuditRecord{},
		&AuditRecordList{},
		&ComplianceReport{},
		&ComplianceReportList{},
		&UsageReport{},
		&UsageReportList{},
		&MacNodeRestore{},
		&MacNodeLeaseBinding{},
		&MacNodeLeaseRelease{},
	)
	metav1.AddToGroupVersion(scheme, SchemeGroupVersion)
	return nil
}

func addDefaultingFuncs(scheme *runtime.Scheme) error {
	return RegisterDefaults(scheme)
}
